"""The coordinator's orders to a server: probe, fence, register, drain, tell its load, move stores;
and the test of the coordinator's storage.

Each order is one request or one write, with a deadline, and may end in an event for
`membership.py`. A server that has heard of a later coordinator refuses; the DeposedError ends the
service. See `term.py`, and `progress.py` for a later coordinator that began on another disk.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.coordinator.decisions.events import (
    FenceFailed,
    FenceWritten,
    Probe,
    ProbeAnswered,
    ProbeFailed,
    StorageTested,
    TellToDrain,
    WriteFence,
)
from holdfast.coordinator.life import Life
from holdfast.coordinator.state.state_file import StateFile
from holdfast.protocol.bus.bus import NoRespondersError
from holdfast.protocol.control import ServerLoad, ServerPhase, StoreLoad
from holdfast.protocol.errors import DeposedError, HoldfastError, StorageError
from holdfast.protocol.frames import decode_control, encode_control
from holdfast.protocol.limits import (
    CONTROL_TIMEOUT_SECONDS,
    MAX_ARRAY_LENGTH,
    MAX_HOT_STORES,
    MAX_INTEGER,
    MAX_TERM,
    PROBE_TIMEOUT_SECONDS,
)
from holdfast.protocol.names import (
    StoreId,
    StoreKind,
    check_server,
    check_store,
    check_tenant,
)
from holdfast.protocol.serving.trouble import Trouble

logger = logging.getLogger("holdfast.coordinator")

#: A test of the storage that takes longer is logged.
SLOW_STORAGE_SECONDS: Final = 1.0


class Orders:
    """The orders of one coordinator's term."""

    def __init__(self, life: Life, state: StateFile, cluster: str) -> None:
        self._bus = life.bus
        self._subjects = life.subjects
        self._now = life.now
        self._storage = life.storage
        self._background_tasks = life.background_tasks
        self._storage_use = life.storage_use
        self._state = state
        self._cluster = cluster
        self._silent = Trouble(logger, "coordinator.probe_failed", logging.INFO)
        self._hidden = Trouble(logger, "coordinator.server_hidden", logging.INFO)
        self._lock_unknown = Trouble(logger, "coordinator.lock_unknown", logging.INFO)
        self._storage_failing = Trouble(logger, "coordinator.storage_fails")
        self._fence_failing = Trouble(logger, "coordinator.fence_failed", logging.ERROR)
        self._unregistered = Trouble(logger, "coordinator.not_registered", logging.INFO)
        self._load_unknown = Trouble(logger, "coordinator.load_unknown", logging.INFO)
        self._untold = Trouble(logger, "coordinator.not_told", logging.INFO)

    def heard(self, server: str) -> None:
        """Note that a server speaks."""
        self._silent.over(server)
        self._hidden.over(server)
        self._lock_unknown.over(server)

    def forget(self, server: str) -> None:
        """Note that a server has ended: nobody has orders for it."""
        self.heard(server)
        self._unregistered.over(server)
        self._untold.over(server)
        self._load_unknown.over(server)

    async def probe(self, order: Probe) -> ProbeAnswered | ProbeFailed:
        """Ask for a sign of life. Raises DeposedError."""
        server, incarnation = order.server, order.incarnation
        try:
            answer = await self._command(server, PROBE_TIMEOUT_SECONDS, command="probe")
        except NoRespondersError:
            return await self._nobody_listens(order)
        except DeposedError:
            raise
        except HoldfastError as error:
            self._silent.note("server=%s reason=%s", server, error, of=server)
            return ProbeFailed(server, incarnation, no_responders=False)
        self.heard(server)
        # An answer of another incarnation of this server proves nothing about this one.
        if answer.get("incarnation") != incarnation:
            return ProbeFailed(server, incarnation, no_responders=False)
        draining = answer.get("state") in (ServerPhase.DRAINING, ServerPhase.STOPPING)
        return ProbeAnswered(server, incarnation, draining)

    async def _nobody_listens(self, order: Probe) -> ProbeFailed:
        """Look for the process elsewhere than on NATS, which may hide it: its nats-server may have
        died, or a route of the cluster may be down, and both mend in a second."""
        server, incarnation = order.server, order.incarnation
        try:
            runs = await self._background_tasks.blocking(self._storage.may_run, server)
        except StorageError as error:
            self._lock_unknown.note("server=%s reason=%r", server, error, of=server)
            runs = None
        if runs is False:
            return ProbeFailed(server, incarnation, no_responders=True, process_ended=True)
        is_hidden = runs is True or self._bus.clustered
        if is_hidden:
            self._hidden.note("server=%s incarnation=%s", server, incarnation, of=server)
        return ProbeFailed(server, incarnation, no_responders=not is_hidden)

    async def test_storage(self) -> StorageTested:
        """Write durably beside the fences, and return when that has ended. Storage that answers
        with an error does not hang; the fence will fail too, and be tried again."""
        began_at = self._now()
        try:
            with self._storage_use.call():
                await self._background_tasks.blocking(self._storage.test)
        except StorageError as error:
            self._storage_failing.note("reason=%s", error)
        else:
            self._storage_failing.over()
        seconds = self._now() - began_at
        if seconds > SLOW_STORAGE_SECONDS:
            logger.warning("coordinator.storage_hung seconds=%.1f", seconds)
        return StorageTested(began_at)

    async def fence_is_open(self, server: str, incarnation: str) -> bool:
        """Tell whether an incarnation has not been fenced. Raises StorageError."""
        is_open = self._storage.fences.is_open
        return await self._background_tasks.blocking(is_open, server, incarnation)

    async def write_fence(
        self, order: WriteFence
    ) -> FenceWritten | tuple[FenceFailed, StorageError]:
        """Fence durably, or return why that failed. Raises DeposedError if this coordinator has a
        successor; then it fences nobody."""
        server, incarnation = order.server, order.incarnation
        logger.info(
            "coordinator.fencing server=%s incarnation=%s reason=%s",
            server,
            incarnation,
            order.reason,
        )
        try:
            await self._background_tasks.blocking(self._fence, server, incarnation)
        except StorageError as error:
            self._fence_failing.note(
                "server=%s incarnation=%s reason=%s", server, incarnation, error, of=server
            )
            return FenceFailed(server, incarnation), error
        self._fence_failing.over(server)
        return FenceWritten(server, incarnation)

    async def ask_to_register(self, server: str) -> None:
        """Ask an unknown incarnation to register. Raises DeposedError."""
        try:
            await self._command(server, CONTROL_TIMEOUT_SECONDS, command="register")
        except DeposedError:
            raise
        except HoldfastError as error:
            # Its next heartbeat makes the coordinator ask again.
            self._unregistered.note("server=%s reason=%s", server, error, of=server)
        else:
            self._unregistered.over(server)

    async def tell_to_drain(self, order: TellToDrain) -> None:
        """Tell an incarnation to release its stores, or to take
        stores again. Raises DeposedError."""
        command = "drain" if order.draining else "undrain"
        try:
            await self._command(
                order.server,
                CONTROL_TIMEOUT_SECONDS,
                command=command,
                incarnation=order.incarnation,
            )
        except DeposedError:
            raise
        except HoldfastError as error:
            # The server is told again when its next heartbeat still has the wrong state.
            self._untold.note("server=%s reason=%s", order.server, error, of=order.server)
        else:
            self._untold.over(order.server)

    async def ask_load(self, server: str, incarnation: str, limit: int) -> ServerLoad | None:
        """Ask a server what its stores were asked for lately, with at most `limit` of the busiest.
        Return None if it does not tell. Raises DeposedError."""
        try:
            answer = await self._command(
                server, CONTROL_TIMEOUT_SECONDS, command="load", limit=limit
            )
            load = _server_load(answer)
        except DeposedError:
            raise
        except (HoldfastError, KeyError, TypeError, ValueError, OverflowError) as error:
            # A server of an earlier version does not know the question.
            self._load_unknown.note("server=%s reason=%r", server, error, of=server)
            return None
        self._load_unknown.over(server)
        # Another incarnation has other stores.
        return load if load.incarnation == incarnation else None

    async def move(
        self, server: str, incarnation: str, to: str, stores: Sequence[tuple[StoreId, int]]
    ) -> None:
        """Tell an incarnation to hand stores of these epochs over to the server `to`.

        Raises UnavailableError, InvalidArgumentError from a server that moves no single stores,
        MalformedFrameError from one of an earlier version, DeposedError.
        """
        await self._command(
            server,
            CONTROL_TIMEOUT_SECONDS,
            command="move",
            incarnation=incarnation,
            to=to,
            stores=[[*store, epoch] for store, epoch in stores],
        )

    async def _command(
        self, server: str, timeout_seconds: float, **fields: object
    ) -> Mapping[str, Any]:
        payload = encode_control(term=self._state.term, cluster=self._cluster, **fields)
        subject = self._subjects.control(server)
        answer = await self._bus.request(subject, payload, timeout_seconds)
        try:
            return decode_control(answer, max_length=MAX_ARRAY_LENGTH)
        except DeposedError as error:
            newer_term = error.fields.get("newer_term")
            if type(newer_term) is int and self._state.term < newer_term < MAX_TERM:
                await self._background_tasks.blocking(self._state.fall_behind, newer_term)
            raise

    def _fence(self, server: str, incarnation: str) -> None:
        self._state.check_term()
        self._storage.fences.fence(server, incarnation)


def _server_load(answer: Mapping[str, Any]) -> ServerLoad:
    """Return what a server says of its load. Raises ValueError, KeyError, TypeError."""
    hot = []
    for tenant, kind, name, epoch, operations, size_bytes, *_ in answer["stores"]:
        store = StoreId(check_tenant(tenant), int(StoreKind(kind)), check_store(name))
        hot.append(StoreLoad(store, _rate(operations), _rate(size_bytes), int(_rate(epoch))))
    return ServerLoad(
        check_server(answer["server"]),
        check_server(answer["incarnation"]),
        _rate(answer["operations"]),
        _rate(answer["bytes"]),
        int(_rate(answer["open_stores"])),
        tuple(hot[:MAX_HOT_STORES]),
    )


def _rate(number: Any) -> float:
    if type(number) not in (int, float) or not 0 <= number <= MAX_INTEGER:
        raise ValueError(f"{number!r:.40} is no rate")
    return float(number)

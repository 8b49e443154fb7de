"""What the coordinator does to one server: probes it, fences it, tells it to register or to drain.

Each order is one request or one write, with a deadline, and ends in an event for `membership.py` or
in nothing. A server that has heard of a later coordinator refuses, and DeposedError ends the
service: see `term.py`, and `progress.py` for when that coordinator began on no disk of ours.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.coordinator.background_tasks import BackgroundTasks
from holdfast.coordinator.decisions.events import (
    FenceFailed,
    FenceWritten,
    Probe,
    ProbeAnswered,
    ProbeFailed,
    TellToDrain,
    WriteFence,
)
from holdfast.protocol.bus.bus import Bus, NoRespondersError
from holdfast.protocol.control import ServerMode
from holdfast.protocol.errors import DeposedError, HoldfastError, StorageError
from holdfast.protocol.frames import decode_control, encode_control
from holdfast.protocol.limits import CONTROL_TIMEOUT_SECONDS, MAX_TERM, PROBE_TIMEOUT_SECONDS
from holdfast.protocol.subjects import Subjects
from holdfast.shared_fs.bucket_log.fences import Fences

logger = logging.getLogger("holdfast.coordinator")


class Orders:
    """The orders of one coordinator's term."""

    def __init__(
        self,
        *,
        bus: Bus,
        subjects: Subjects,
        fences: Fences,
        background_tasks: BackgroundTasks,
        term: int,
        check_term: Callable[[], None],
        fall_behind: Callable[[int], None],
        cluster: str,
    ) -> None:
        """`fall_behind` takes a higher term that a server has heard, and raises DeposedError."""
        self._bus = bus
        self._subjects = subjects
        self._fences = fences
        self._background_tasks = background_tasks
        self._term = term
        self._check_term = check_term
        self._fall_behind = fall_behind
        self._cluster = cluster

    async def probe(self, order: Probe) -> ProbeAnswered | ProbeFailed:
        """Ask for a sign of life. Raises DeposedError."""
        server, incarnation = order.server, order.incarnation
        try:
            answer = await self._command(server, PROBE_TIMEOUT_SECONDS, command="probe")
        except NoRespondersError:
            return ProbeFailed(server, incarnation, no_responders=True)
        except DeposedError:
            raise
        except HoldfastError as error:
            logger.info("coordinator.probe_failed server=%s reason=%s", server, error)
            return ProbeFailed(server, incarnation, no_responders=False)
        # Another incarnation under this name says nothing about this one.
        if answer.get("incarnation") != incarnation:
            return ProbeFailed(server, incarnation, no_responders=False)
        draining = answer.get("state") in (ServerMode.DRAINING, ServerMode.STOPPING)
        return ProbeAnswered(server, incarnation, draining)

    async def write_fence(
        self, order: WriteFence
    ) -> FenceWritten | tuple[FenceFailed, StorageError]:
        """Fence durably, or return why not. Raises DeposedError: who has a successor fences
        nobody."""
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
            logger.error(
                "coordinator.fence_failed server=%s incarnation=%s reason=%s",
                server,
                incarnation,
                error,
            )
            return FenceFailed(server, incarnation), error
        return FenceWritten(server, incarnation)

    async def ask_to_register(self, server: str) -> None:
        """Ask an incarnation that is not known to register. Raises DeposedError."""
        try:
            await self._command(server, CONTROL_TIMEOUT_SECONDS, command="register")
        except DeposedError:
            raise
        except HoldfastError as error:
            # It is asked again at its next heartbeat.
            logger.info("coordinator.not_registered server=%s reason=%s", server, error)

    async def tell_to_drain(self, order: TellToDrain) -> None:
        """Have an incarnation release its stores, or take stores again. Raises DeposedError."""
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
            # It is told again at its next heartbeat that says otherwise.
            logger.info("coordinator.not_told server=%s reason=%s", order.server, error)

    async def _command(
        self, server: str, timeout_seconds: float, **fields: object
    ) -> Mapping[str, Any]:
        payload = encode_control(term=self._term, cluster=self._cluster, **fields)
        subject = self._subjects.control(server)
        answer = await self._bus.request(subject, payload, timeout_seconds)
        try:
            return decode_control(answer)
        except DeposedError as error:
            newer_term = error.fields.get("newer_term")
            if type(newer_term) is int and self._term < newer_term < MAX_TERM:
                await self._background_tasks.blocking(self._fall_behind, newer_term)
            raise

    def _fence(self, server: str, incarnation: str) -> None:
        self._check_term()
        self._fences.fence(server, incarnation)

"""The persist server: one incarnation, from its lock to its last checkpoint.

    start     lock the server's name, make the parts (`composition.py`), register
    serve     frames in (`reception.py`), through `pipeline.py`; stores opened on first use
    maintain  `checkpointing.py`, four times a second
    stop      hand over open stores (`leaving.py`), answer what has arrived, leave nothing behind
              (`ending.py`)

An incarnation that is fenced, or whose log cannot be synced, stops at once and answers nothing
more. Its supervisor starts the next one, which is a new incarnation like any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Iterator
from typing import Final

from holdfast.persist.composition import Origins, compose
from holdfast.persist.life_phase import LifePhase
from holdfast.persist.measuring import measure
from holdfast.persist.options import Machine, ServerOptions
from holdfast.persist.parts import Parts
from holdfast.persist.store.states import OpenState
from holdfast.persist.threads.loop_watch import Turns
from holdfast.protocol.bus.bus import Bus
from holdfast.protocol.errors import FencedError, HoldfastError, StorageError
from holdfast.protocol.limits import EXPIRY_CHECK_SECONDS
from holdfast.protocol.names import check_server
from holdfast.protocol.serving.audit_trail import AuditTrail
from holdfast.protocol.work.roles import roles_text
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout

logger = logging.getLogger("holdfast.persist")

_MAINTENANCE_SECONDS: Final = 0.25
#: How long the end of a server waits for the audit log: before it hands its stores over, of which
#: the log may be one, and when all other work is done.
_DEEDS_SECONDS: Final = 3.0
_AUDIT_SECONDS: Final = 1.0


def new_incarnation() -> str:
    """Return the id of a new life. Ids sort by start time and never repeat."""
    return f"{int(time.time() * 1000):011x}{secrets.token_hex(4)}"


class PersistServer:
    """One incarnation of one server. Make it, `run` it once, and make another for the next life."""

    def __init__(
        self,
        bus: Bus,
        layout: Layout,
        disk: Disk,
        server: str,
        options: ServerOptions | None = None,
        *,
        incarnation: str | None = None,
        bucket: Bucket | None = None,
        machine: Machine | None = None,
    ) -> None:
        """`bucket` takes snapshots. In a bucket-only cluster it holds everything."""
        options, machine = options or ServerOptions(), machine or Machine()
        self._origins = Origins(bus, layout, disk, bucket, options, machine)
        self.server = check_server(server)
        self.incarnation = incarnation or new_incarnation()
        self._phase = LifePhase(self.server, options.roles)
        self._turns = Turns(server)
        #: It is to stop once the audit log has what it lacks.
        self._catches_up = False
        #: The parts of the server, once it runs.
        self.parts: Parts | None = None

    @property
    def registered(self) -> bool:
        """True once the coordinator has accepted this incarnation, which then may own stores."""
        return self.parts is not None and self.parts.coordination.registered

    @property
    def lives_again(self) -> bool:
        """True if the next life is to begin after a clean end; see `leaving.py`."""
        return self._phase.lives_again

    def why_unready(self) -> str:
        """Return why this incarnation does not serve, or nothing if it does."""
        parts = self.parts
        if parts is None or not parts.coordination.registered:
            return "the coordinator has not accepted it yet"
        if self._phase.opens_nothing:
            return "it hands its stores over"
        return "nothing can be made durable" if parts.heartbeats.stalled else ""

    def stop(self) -> None:
        """Ask for a clean end. `run` returns when everything is durable and released. What the
        audit log lacks is told first, unless this is asked again: once the only server hands its
        stores over, nobody takes it."""
        parts = self.parts
        trail = None if parts is None else parts.audit_trail
        if parts is None or trail is None or not trail.undelivered_count or self._catches_up:
            self._phase.stop()
            return
        self._catches_up = True
        parts.tasks.spawn(self._stop_after(trail))

    async def _stop_after(self, trail: AuditTrail) -> None:
        await trail.catch_up(_DEEDS_SECONDS)
        self._phase.stop()

    async def run(self, ready: asyncio.Event | None = None) -> None:
        """Run this incarnation until `stop`. Sets `ready` once frames are accepted.

        Raises AlreadyRunningError, FencedError, StorageError, or whatever ended it.
        """
        disk, home = self._origins.disk, self._origins.layout.server(self.server)
        disk.make_directory(home)
        with contextlib.ExitStack() as resources:
            lock = disk.lock(home / "lock", f"server {self.server!r}")
            resources.callback(lock.release)
            parts = self.parts = compose(
                self._origins, self.server, self.incarnation, self._phase, resources
            )
            measure(parts, self._origins.options.prices)
            try:
                await self._live(parts, ready)
            except BaseException:
                _abandon(parts)
                raise

    async def _live(self, parts: Parts, ready: asyncio.Event | None) -> None:
        coordination = parts.coordination
        await parts.reception.hear_coordinator()
        await parts.storage.begin()
        await coordination.begin()
        await parts.storage.prove(self._phase.stopping.is_set)
        if parts.quota_keeping is not None:
            await parts.quota_keeping.look()
        if parts.key_keeping is not None:
            await parts.key_keeping.begin()
        await coordination.register(self._phase.stopping.is_set)
        await parts.reception.take_requests()
        logger.info(
            "server.started server=%s incarnation=%s asks_for_tokens=%s roles=%s zone=%s",
            self.server,
            self.incarnation,
            str(parts.gatekeeper.asks_for_tokens).lower(),
            roles_text(self._origins.options.roles),
            self._origins.options.zone,
        )
        if ready is not None:
            ready.set()
        self._turns.turned()
        try:
            async with contextlib.AsyncExitStack() as stack:
                left = await self._serve(parts, stack)
                if parts.audit_trail is not None:
                    await parts.audit_trail.finish(_AUDIT_SECONDS)
                await parts.ending.finish(left)
        except BaseExceptionGroup as group:
            raise _first_cause(group) from group
        finally:
            parts.tasks.cancel()
            await parts.administrator.stop()

    async def _serve(self, parts: Parts, stack: contextlib.AsyncExitStack) -> int:
        """Serve until `stop`, hand over and close what is open. Return how many files could not be
        made durable; then nothing of this incarnation runs any more. Whatever is still to be
        closed after the end goes on `stack`."""
        stopping, coordination = self._phase.stopping, parts.coordination
        loop_watch = self._origins.machine.loop_watch
        with contextlib.ExitStack() as watching:
            async with asyncio.TaskGroup() as tasks:
                if loop_watch is not None:
                    watching.enter_context(loop_watch.speaking(self._turns, parts.heartbeats.words))
                running = [
                    *(tasks.create_task(work) for work in parts.work()),
                    tasks.create_task(self._turns.run()),
                    tasks.create_task(coordination.keep_registered(stopping.is_set)),
                ]
                await self._maintain_until_stopped(parts)
                await parts.leaving.hand_over()
                stack.push_async_callback(parts.reception.close)
                await parts.reception.take_no_more_requests()
                await parts.administrator.stop()
                left = await parts.ending.settle()
                if parts.lag is not None:
                    await parts.lag.finish()
                for task in running:
                    task.cancel()
        return left

    async def _maintain_until_stopped(self, parts: Parts) -> None:
        loop = asyncio.get_running_loop()
        stopping, upkeep = self._phase.stopping, parts.open_stores.upkeep
        turns = round(EXPIRY_CHECK_SECONDS / _MAINTENANCE_SECONDS)
        while not stopping.is_set():
            parts.inbox.expire_due(upkeep.expiring(turns), parts.life.clock_ms())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_MAINTENANCE_SECONDS):
                    await stopping.wait()
            await parts.checkpointer.run_pass(loop.time())
            await parts.resting.run_pass(loop.time())


def _abandon(parts: Parts) -> None:
    """Close every file as it is: the log has what the files lack."""
    for store in parts.open_stores.stores():
        if store.file is not None and store.state is OpenState.SERVING:
            with contextlib.suppress(HoldfastError):
                store.file.abandon()


def _first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return what ended the server: the first exception in a group that reports a failed
    disk or file. A task that meets one fences the incarnation, and other tasks then fail
    because of the fence."""
    causes = list(_single(group))
    for cause in causes:
        if isinstance(cause, StorageError) and not isinstance(cause, FencedError):
            return cause
    return causes[0]


def _single(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _single(error)
        else:
            yield error

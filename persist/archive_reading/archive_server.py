"""Reads of the archive for the owners of a zone: asked for over the bus, done in threads.

Only a server with the role `archive` has this. It opens no store and needs no keys. What it answers
is no promise: the owner checks it (`asks.py`) and answers its client itself. Invariants:

- It reads only what belongs to a part that it has claimed, in the epoch that the owner names, and
  looks at its claim and its fence before each read. So no two servers do the same, but for the one
  read that a stopped one was about to begin, which harms nobody. Owners of earlier versions name
  no epoch, and are answered.
- PARALLEL_ASKS asks are worked at at once, and what waits is bounded. Beyond the bound the answer
  is a refusal, and the owner reads itself.
- Nothing is read for an ask that its owner no longer waits for.
- A table that was looked up longer ago than the ask allows is looked up again before it is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Final, Protocol

from holdfast.persist.archive_reading.archive_access import ReadsArchive
from holdfast.persist.archive_reading.asks import ArchiveAsk, NotClaimedError, answer_of, work_of
from holdfast.persist.archive_reading.kept_rows import KeptRows
from holdfast.persist.incarnation import Incarnation
from holdfast.persist.threads.run_in_thread import RunInThread
from holdfast.persist.threads.spawned_tasks import SpawnedTasks
from holdfast.protocol import frames
from holdfast.protocol.bus.bus import BusMessage
from holdfast.protocol.errors import BusyError, HoldfastError, internal_error
from holdfast.protocol.limits import ARCHIVE_ASK_SECONDS, FRAME_RESERVE_BYTES, PAGE_ROWS
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.serving.mishaps import Mishaps

logger = logging.getLogger("holdfast.persist")

#: How many asks are worked at at once. Each holds some row groups in memory meanwhile.
PARALLEL_ASKS: Final = 4
#: How many may wait for that, or be worked at.
_MAX_WAITING: Final = 64
#: How many tables are known at once: a cluster has its own, and perhaps one that it had before.
_MAX_TABLES: Final = 16


class HeldWork(Protocol):
    """A piece of cold work that this incarnation has claimed: `claims.Claimed`."""

    @property
    def epoch(self) -> int: ...

    def is_lost(self) -> bool:
        """Tell whether no further step may be made. Reads the fence."""


class ClaimedWork(Protocol):
    """What this incarnation has claimed: `claims.Claims`."""

    def doing(self, *works: str) -> AbstractContextManager[Mapping[str, HeldWork]]:
        """Do those of these pieces that this server has, meanwhile."""


class ArchiveServer:
    """What one incarnation reads for others. `run` it in a task."""

    def __init__(
        self,
        archive: Callable[[], ReadsArchive],
        life: Incarnation,
        run_in_thread: RunInThread,
        claims: ClaimedWork,
    ) -> None:
        """`archive` makes what reads the cluster's tables."""
        self._claims = claims
        self._zone = life.zone
        self._make = archive
        self._archive = archive()
        self._bus = life.bus
        self._subject = life.subjects.archive(life.server)
        self._run_in_thread = run_in_thread
        self._tasks = SpawnedTasks()
        self._turns = asyncio.Semaphore(PARALLEL_ASKS)
        self._waiting_count = 0
        self._kept_rows = KeptRows(self._forget, run_in_thread)
        #: When each table was looked up last, at the earliest.
        self._looked_at: dict[str, float] = {}
        self._asked = life.statistics.counters(metrics.ARCHIVE_ASKED)
        self._served = life.statistics.counter(metrics.ARCHIVE_SERVED)
        self._mishaps = Mishaps(logger)

    async def run(self) -> None:
        """Answer until cancelled."""
        subscription = await self._bus.subscribe(self._subject, self._on_message)
        try:
            await self._kept_rows.run()
        finally:
            self._tasks.cancel()
            await subscription.unsubscribe()

    def _forget(self) -> None:
        self._archive.forget()

    def _on_message(self, message: BusMessage) -> None:
        if message.reply and len(self._tasks) < 4 * _MAX_WAITING:
            self._tasks.spawn(self._answer(message))

    async def _answer(self, message: BusMessage) -> None:
        try:
            payload, count = await self._read(message.payload)
            self._asked.add("answered")
            self._served.value += count
        except HoldfastError as error:
            self._asked.add("refused")
            payload = frames.encode_control_error(error)
        except Exception as error:  # noqa: BLE001 (a bug over one ask ends no server)
            self._mishaps.note("archive.ask_failed", message.reply, error)
            self._asked.add("refused")
            payload = frames.encode_control_error(internal_error("an ask of the archive", error))
        try:
            await self._bus.publish(message.reply, payload)
        except HoldfastError as error:
            # The owner waits for some seconds, then reads itself.
            logger.debug("archive.not_answered reason=%s", error)

    async def _read(self, payload: bytes) -> tuple[bytes, int]:
        """Return the answer to an ask, and how many messages it has. Raises HoldfastError."""
        loop = asyncio.get_running_loop()
        arrived_at = loop.time()
        if self._waiting_count >= _MAX_WAITING:
            raise BusyError(what="the archive")
        self._waiting_count += 1
        try:
            async with self._turns:
                if loop.time() - arrived_at > ARCHIVE_ASK_SECONDS:
                    raise BusyError(what="the archive")
                ask = ArchiveAsk.from_wire(frames.decode_control(payload, max_length=PAGE_ROWS))
                archive = await self._looked_up(ask, arrived_at)
                limit_bytes = self._bus.max_payload_bytes - FRAME_RESERVE_BYTES
                # Of what is read ahead the first message is only where the reader is.
                part = work_of(self._zone, ask.messages[-1 if ask.is_ahead else 0])
                with self._claims.doing(part) as mine:
                    held = mine.get(part)
                    if ask.epoch is not None and (held is None or held.epoch != ask.epoch):
                        raise NotClaimedError(work=part, epoch=ask.epoch)

                    def work() -> tuple[bytes, int]:
                        if ask.epoch is not None and (held is None or held.is_lost()):
                            raise NotClaimedError(work=part, epoch=ask.epoch)
                        if ask.is_ahead:
                            archive.warm(ask.messages)
                            return frames.encode_control(bodies=[]), 0
                        bodies = answer_of(ask, archive.bodies(ask.messages), limit_bytes)
                        return frames.encode_control(bodies=bodies), len(bodies)

                    self._kept_rows.used()
                    found: tuple[bytes, int] = await self._run_in_thread(work)
                    return found
        finally:
            self._waiting_count -= 1

    async def _looked_up(self, ask: ArchiveAsk, arrived_at: float) -> ReadsArchive:
        """Return what reads the table of an ask, in a version as new as it must be."""
        table, now = ask.place.table, asyncio.get_running_loop().time()
        looked_at = self._looked_at.get(table)
        if looked_at is None:
            if len(self._looked_at) >= _MAX_TABLES:
                self._archive = self._make()
                self._looked_at.clear()
            # Its first read looks it up.
            self._looked_at[table] = looked_at = now
        archive = self._archive
        # The age is a difference of the owner's clock, and the ask took time to come here.
        if ask.age_ms is not None and looked_at < arrived_at - ask.age_ms / 1000:
            await self._run_in_thread(lambda: archive.look_again(table))
            self._looked_at[table] = max(self._looked_at.get(table, now), now)
        return archive

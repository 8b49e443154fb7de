"""The last part of the path through a server: past the gate, and out.

The caller that adds a release vouches that everything it depends on is synced. Invariants:

- Nothing leaves before the fence was read as `open`, after the last sync that it depends on.
- Releases leave in the order in which they were added, so a store's broadcasts are in its order.
- Reads run on what is durable, in slices between the answers to writes. Each slice reads the
  fence for itself, so no reader holds back an ack. Tenants take turns, so no tenant holds back
  another's reads.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.operations.read_rows import ReadBounds
from holdfast.persist.store.open_stores import Arrival
from holdfast.persist.store.store import Store
from holdfast.persist.threads.giving_way import give_way
from holdfast.persist.write_path.durable_reads import DurableReads
from holdfast.persist.write_path.inbox import Inbox
from holdfast.persist.write_path.log_progress import LogProgress
from holdfast.persist.write_path.materialising import Materialiser
from holdfast.persist.write_path.output_gate import OutputGate
from holdfast.persist.write_path.tick import Answers, answer_count
from holdfast.persist.write_path.turn import MATERIALISE_OPERATIONS
from holdfast.persist.zone_traffic import ZoneTraffic
from holdfast.protocol import frames
from holdfast.protocol.bus.bus import check_subject
from holdfast.protocol.changes import without_values
from holdfast.protocol.errors import TooLargeError
from holdfast.protocol.limits import (
    FRAME_RESERVE_BYTES,
    HURRIED_READS_PART,
    HURRY_SECONDS,
    META_WATCH_SECONDS,
    PAGE_BYTES,
    PAGE_ROWS,
    READ_SLICE_SECONDS,
)
from holdfast.protocol.monitoring.refusals import Refusals
from holdfast.protocol.monitoring.stage_times import StageTimes
from holdfast.protocol.serving.fair_queue import FairQueue

logger = logging.getLogger("holdfast.persist")

#: How many operations a slice of reads executes before answers to writes get their turn.
_SLICE_OPERATIONS: Final = 1024
#: How many bytes of an answer cost as much as another operation.
_OPERATION_BYTES: Final = PAGE_BYTES // _SLICE_OPERATIONS


@dataclass(slots=True)
class Release:
    """What leaves together, once tick `wait_for` is synced."""

    wait_for: int
    answers: Answers
    reads: list[tuple[Store, Arrival]] = field(default_factory=list)
    broadcasts: list[tuple[Store, bytes]] = field(default_factory=list)
    #: Set when this and everything before it has left.
    left: asyncio.Event | None = None
    #: When its present stage began, by the loop's clock.
    stage_at: float = 0.0

    @property
    def answer_count(self) -> int:
        """The number of answers and reads in it."""
        return len(self.reads) + answer_count(self.answers)


@dataclass(slots=True, eq=False)
class _ReadsBefore:
    """How many reads added before a mark are unanswered, and the mark, which is
    set when none is."""

    count: int = 0
    left: asyncio.Event | None = None


class Releaser:
    """Sends what one incarnation answers and broadcasts. `run` it in a task."""

    def __init__(
        self,
        life: Incarnation,
        gate: OutputGate,
        inbox: Inbox,
        progress: LogProgress,
        reads: DurableReads,
        materialiser: Materialiser,
    ) -> None:
        self._bus = life.bus
        self._times = StageTimes(life.statistics)
        self._refusals = Refusals(life.statistics)
        self._traffic = ZoneTraffic(life.zone, life.statistics)
        self._subjects = life.subjects
        self._gate = gate
        self._inbox = inbox
        self._progress = progress
        self._durable_reads = reads
        self._materialiser = materialiser
        self._ready: deque[Release] = deque()
        #: Reads of durable state. Tenants take turns.
        self._reads: FairQueue[tuple[Store, Arrival, _ReadsBefore]] = FairQueue(
            _SLICE_OPERATIONS // 8
        )
        #: The reads before each pending mark. The last entry counts those after all marks.
        self._marks: deque[_ReadsBefore] = deque([_ReadsBefore()])
        self._to_release = asyncio.Event()
        self._releasing = False
        #: The event of `next_rest`, if a caller waits for it.
        self._rest: asyncio.Event | None = None
        #: Some answers or broadcasts that were added have not left yet. Reads do not count.
        self.releasing_answers = False
        #: When the last answers to writes left, by the loop's clock.
        self._answered_at = -HURRY_SECONDS

    @property
    def idle(self) -> bool:
        """True if everything that was added has left."""
        return self._all_left and not self._releasing

    @property
    def next_rest(self) -> asyncio.Event:
        """An event that is set the next time that everything added has left."""
        if self._rest is None:
            self._rest = asyncio.Event()
        return self._rest

    @property
    def _all_left(self) -> bool:
        return not (self._ready or self._reads) and len(self._marks) == 1

    def answer(self, answers: Answers) -> None:
        """Send answers that waited elsewhere for what they promise."""
        self.add(Release(0, answers))

    async def settled(self, tick: int) -> None:
        """Return once `tick` is durable and everything that waited for it has left."""
        await self._progress.reaches(tick)
        left = asyncio.Event()
        self.add(Release(0, {}, left=left))
        await left.wait()

    def add(self, release: Release) -> None:
        """Send a release that depends only on what is synced."""
        release.stage_at = asyncio.get_running_loop().time()
        self._ready.append(release)
        self.releasing_answers = True
        self._to_release.set()

    async def run(self) -> None:
        """Send what is added until cancelled. Raises FencedError."""
        while True:
            await self._to_release.wait()
            self._to_release.clear()
            self._releasing = True
            while not self._all_left:
                if self._ready:
                    await self._release_ready()
                if self._reads or len(self._marks) > 1:
                    await self._release_reads()
            self._releasing = False
            if self._rest is not None:
                self._rest.set()
                self._rest = None

    async def _release_ready(self) -> None:
        """Send the answers to writes, and the broadcasts."""
        ready = list(self._ready)
        self._ready.clear()
        # This check keeps a zombie silent. It comes after every sync that `ready` depends on, and
        # before anything leaves.
        await self._gate.passed()
        clock = asyncio.get_running_loop().time
        passed_at = clock()
        for release in ready:
            await self._send_answers(release.answers)
            if release.answers:
                count = answer_count(release.answers)
                self._times.gate.observe(passed_at - release.stage_at, count)
                self._times.release.observe(clock() - passed_at, count)
                self._times.left(count)
                self._answered_at = clock()
            if release.broadcasts:
                # At once: a coroutine for each costs as much as the rest.
                await self._bus.publish_all(self._addressed(release.broadcasts), _lost)
            self._bus.send_now()
            before = self._marks[-1]
            for store, arrival in release.reads:
                self._reads.push(arrival.store.tenant, (store, arrival, before))
            before.count += len(release.reads)
            if release.left is not None:
                before.left = release.left
                self._marks.append(_ReadsBefore())
            # Publishing seldom suspends, so let heartbeats and new frames have their turn.
            await asyncio.sleep(0)
        self.releasing_answers = bool(self._ready)
        for release in ready:
            self._materialiser.relieve(release.broadcasts)
        self._inbox.go_on()

    async def _release_reads(self) -> None:
        """Execute and answer one slice of the waiting reads. Large or many reads must not delay the
        answers to writes."""
        answers: Answers = {}
        clock = asyncio.get_running_loop().time
        began_at = clock()
        hurried = began_at - self._answered_at < HURRY_SECONDS
        part = HURRIED_READS_PART if hurried else 1
        room, room_bytes = _SLICE_OPERATIONS // part, PAGE_BYTES // part
        late_at = began_at + READ_SLICE_SECONDS / part

        def is_late() -> bool:
            return clock() >= late_at

        bounds = ReadBounds(is_late, PAGE_ROWS // part, room_bytes)
        execute = self._durable_reads.execute
        while self._reads and room > 0 and room_bytes > 0 and not is_late():
            _, waiting, allowance = self._reads.begin_turn()
            allowance = min(allowance, room)
            spent = 0
            while waiting and spent < allowance and room_bytes > 0 and not is_late():
                store, arrival, before = waiting.popleft()
                spent += len(arrival.group.operations)
                if store.pending.ticks:
                    spent += MATERIALISE_OPERATIONS
                answer_bytes = execute(store, arrival, answers, bounds)
                before.count -= 1
                room_bytes -= answer_bytes
                spent += answer_bytes // _OPERATION_BYTES
            # A tenant that has made the slice late has used all of it.
            self._reads.end_turn(max(spent, _SLICE_OPERATIONS // part) if is_late() else spent)
            room -= spent
        left = []
        while self._marks[0].left is not None and not self._marks[0].count:
            left.append(self._marks.popleft().left)
        # Read the fence after the reads, and before any of their answers leaves.
        await self._gate.passed()
        await self._send_answers(answers)
        self._bus.send_now()
        for each in left:
            assert each is not None
            each.set()
        if hurried and self._reads:
            await give_way()
        else:
            await asyncio.sleep(0)

    async def _send_answers(self, answers: Answers) -> None:
        for reply, elements in answers.items():
            for payload in self._reply_payloads(elements):
                self._traffic.reply(reply, len(payload))
                await self._publish(reply, payload)

    def _addressed(self, broadcasts: list[tuple[Store, bytes]]) -> list[tuple[str, bytes]]:
        addressed = []
        for store, payload in broadcasts:
            subject = store.changes_subject
            if not subject:
                subject = self._subjects.changes(store.id)
                check_subject(subject)
                store.changes_subject = subject
                if not store.is_stream and store.meta_watch is None:
                    # Those who watch without values hear once that there is a new owner. They are
                    # the ones who ask it for more.
                    addressed.append(self._without_values(store, payload))
            addressed.append((subject, payload))
            if store.meta_watch is not None and self._is_watched(store):
                addressed.append(self._without_values(store, payload))
        return addressed

    def _without_values(self, store: Store, payload: bytes) -> tuple[str, bytes]:
        return self._subjects.meta_changes(store.id), without_values(payload)

    def _is_watched(self, store: Store) -> bool:
        """Tell if somebody wants the changes of a kv without values."""
        now = asyncio.get_running_loop().time()
        if store.meta_watch == 0.0:
            store.meta_watch = now + META_WATCH_SECONDS
        elif store.meta_watch is not None and store.meta_watch < now:
            store.meta_watch = None
        return store.meta_watch is not None

    async def _publish(self, subject: str, payload: bytes) -> None:
        try:
            await self._bus.publish(subject, payload)
        except TooLargeError as error:
            _lost(subject, error)

    def _reply_payloads(self, elements: list[list[Any]]) -> list[bytes]:
        """Return replies that each fit in one payload. A single element always fits."""
        limit = self._bus.max_payload_bytes - FRAME_RESERVE_BYTES
        payloads = []
        start = size_bytes = 0
        for index, element in enumerate(elements):
            if element[1] == 0:
                element_bytes = len(element[2]) + 16
            else:
                element_bytes = 1024
                self._refusals.group(element[2], element[3])
            if index > start and size_bytes + element_bytes > limit:
                payloads.append(frames.encode(elements[start:index]))
                start, size_bytes = index, 0
            size_bytes += element_bytes
        if start < len(elements) or not elements:
            payloads.append(frames.encode(elements[start:]))
        return payloads


def _lost(subject: str, error: TooLargeError) -> None:
    # NATS was restarted with a smaller max_payload. The message is lost like any other: writers ask
    # again, and followers find the gap.
    logger.error("server.payload_too_large subject=%s reason=%s", subject, error)

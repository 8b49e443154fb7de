"""The coalescer: gathers operations into frames, and hands the answers to their callers.

Pure: events in (`submit`, `reply`, `resolved`, `tick`, ...), effects out (`turn`), `now` an argument.
`link.py` drives it. There is no timer on the way out: a frame leaves for a server whenever fewer
than FRAMES_IN_FLIGHT are unanswered there, with everything that waits. So a lone write leaves at
once, and a busy client sends large frames.

Invariants:

- Every submitted operation is answered exactly once: with its result, the server's error, or an
  error when its deadline has passed.
- Writes of one store reach its owner in order, also across resends (`store_queue.py`).
- An answer counts whichever copy of a group it answers. A refusal counts only for the copy sent
  last: for an older one, the newer will have its own answer.

What leads to what:

    no responders   the server is gone: forget it, suspect it, ask the coordinator, send there
    not_owner       forget the owner, ask the coordinator, send there
    retryable       back off, send all unanswered writes of the store again, in order
    other error     it is the answer, of every operation in the group
    malformed       as if it had been lost: nothing in it counts
    other version   the error is the answer, of all that is in the frame
    late answer     after PING_SECONDS ask whether the server is there at all
    no answer       after FRAME_TIMEOUT_SECONDS send again, and ask whether the owner has changed
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import repeat
from operator import itemgetter
from typing import Any, Final, NamedTuple

from holdfast.client.wire.credit import Credit
from holdfast.client.wire.frame import (
    Frame,
    FrameBuilder,
    Operation,
    PackedBatch,
    QueuedGroup,
    fail,
)
from holdfast.client.wire.reply import read_reply
from holdfast.client.wire.store_queue import QueueState, ServerQueue, StoreKey, StoreQueue
from holdfast.protocol.control import Owner
from holdfast.protocol.errors import (
    BusyError,
    HoldfastError,
    NotOwnerError,
    ProtocolError,
    UnavailableError,
    UnsupportedVersionError,
    WriterGapError,
)
from holdfast.protocol.frames import Outcome, Run, encode_request
from holdfast.protocol.limits import (
    FRAME_RESERVE_BYTES,
    FRAME_TIMEOUT_SECONDS,
    FRAMES_IN_FLIGHT,
    MAX_FRAME_OPERATIONS,
    MAX_STORED_FRAMES,
    MAX_WAITING_BYTES,
    OPERATION_TIMEOUT_SECONDS,
    PING_SECONDS,
)
from holdfast.protocol.messages import Durability

#: First and longest pause before a store is tried again.
BACKOFF_SECONDS: Final = 0.01
BACKOFF_MAX_SECONDS: Final = 0.5
#: An unanswered frame doubles the time given to the next one, up to this: a server that is slow
#: must not drown in copies.
FRAME_TIMEOUT_MAX_SECONDS: Final = 4 * FRAME_TIMEOUT_SECONDS
#: How often it is asked whether the stores of a silent server have another owner.
SILENCE_LOOK_SECONDS: Final = 1.0
#: A frame below this size is not worth splitting. Two are enough for both sides to work at the same
#: time: with 1,000 concurrent appends to one stream, two frames of 512 in flight took a tenth less of
#: both processors than four of 256, and gave a tenth more appends.
SPREAD_OPERATIONS: Final = 512
#: Stores whose owner and counter are remembered while nothing is on its way to them.
MAX_KNOWN_STORES: Final = 65536

_packed: Final = itemgetter(0)
_DURABILITIES: Final = {int(level): level for level in Durability}
_STORED: Final = int(Durability.STORED)
#: As globals: Python 3.11 needs 0.07 us for a member by its class, and each operation asks four times.
_IDLE: Final = QueueState.IDLE
_READY: Final = QueueState.READY


class SendFrame(NamedTuple):
    """Effect: publish `payload` to `server`; replies carry `number`."""

    server: str
    number: int
    payload: bytes


class Resolve(NamedTuple):
    """Effect: ask the coordinator who owns `stores`, in one request."""

    stores: list[StoreKey]


class Suspect(NamedTuple):
    """Effect: tell the coordinator that nobody answers for this incarnation."""

    server: str
    incarnation: str


Effect = SendFrame | Resolve | Suspect


class Coalescer:
    """All that one client has on its way, to every store and server."""

    def __init__(
        self, writer: bytes, max_payload_bytes: int, jitter: Callable[[], float] = lambda: 1.0
    ) -> None:
        """`writer` is this client's id, `jitter` gives factors of about 1 for the backoff."""
        self.frame_limit_bytes = max_payload_bytes - FRAME_RESERVE_BYTES
        #: Operations submitted and not answered.
        self.pending_count = 0
        self._credit = Credit()
        self._writer = writer
        self._jitter = jitter
        self._queues: dict[StoreKey, StoreQueue] = {}
        self._lanes: dict[str, ServerQueue] = {}
        self._frames: dict[int, Frame] = {}
        self._frame_number = 0
        #: Questions whether a server is there: those on their way, and those to be sent.
        self._pings: dict[int, ServerQueue] = {}
        self._questions: list[SendFrame] = []
        self._first_counter = 1
        #: Queues that may hold something, in no order; dropped lazily.
        self._active: dict[StoreKey, StoreQueue] = {}
        self._unresolved: list[StoreKey] = []
        self._suspects: list[Suspect] = []
        self._suspected: set[str] = set()
        self._backing_off: list[tuple[float, int, StoreQueue]] = []
        self._backoff_count = 0
        self._deadline_at = math.inf
        self._frame_timeout_at = math.inf

    @property
    def wake_at(self) -> float:
        """When `tick` has something to do, at the earliest."""
        at = min(self._deadline_at, self._frame_timeout_at)
        return min(at, self._backing_off[0][0]) if self._backing_off else at

    @property
    def full(self) -> bool:
        """There may be no `room`. Changes nothing, so that any thread may ask, and is asked for each
        operation, so that it counts nothing."""
        credit = self._credit
        return self.pending_count >= credit.window or credit.bytes_bound >= MAX_WAITING_BYTES

    @property
    def room(self) -> int:
        """How many more operations should be let in, of the size of those that wait; 0 or less: none."""
        credit = self._credit
        if credit.bytes_bound >= MAX_WAITING_BYTES // 2:
            credit.counted(self._waiting_bytes(), self.pending_count)
        return credit.room(self.pending_count)

    # Events

    def submit(self, key: StoreKey, operation: Operation, is_write: bool) -> None:
        """An operation for the store `key`."""
        packed, _, deadline_at, _, _ = operation
        queue = self._queues.get(key)
        if queue is None:
            queue = self._open(key)
        if is_write:
            queue.writes.append(operation)
            if type(packed) is PackedBatch:
                queue.holds_batches = True
        else:
            queue.reads.append(operation)
        self.pending_count += 1
        self._credit.bytes_bound += len(packed)
        if deadline_at < self._deadline_at:  # noqa: PLR1730 (five times as fast as min)
            self._deadline_at = deadline_at
        if queue.state is _IDLE:
            self._activate(queue)

    def turn(self, now: float) -> list[Effect]:
        """Return what has to be done now."""
        effects: list[Effect] = []
        if self._suspects:
            effects += self._suspects
            self._suspects = []
        if self._unresolved:
            effects.append(Resolve(list(dict.fromkeys(self._unresolved))))
            self._unresolved = []
        if self._questions:
            effects += self._questions
            self._questions = []
        for lane in self._lanes.values():
            while lane.line and lane.frames_in_flight < FRAMES_IN_FLIGHT:
                frame = self._build(lane, now)
                if frame is not None:
                    effects.append(frame)
        return effects

    def reply(self, number: int, payload: bytes, now: float) -> None:
        """A server's answer to some or all groups of frame `number`.

        Raises MalformedFrameError for one that makes no sense; then nothing has changed.
        """
        frame = self._frames.get(number)
        if frame is None:
            # Too late, or the answer to a ping: the server is there.
            self._pings.pop(number, None)
            return
        try:
            answers = read_reply(payload, frame)
        except UnsupportedVersionError as error:
            self._fail_frame(frame, error)
            return
        for index, answer in answers:
            group = frame.groups[index]
            if group is None:
                continue
            if isinstance(answer, Outcome):
                self._answered(frame, group, answer, now)
            else:
                self._refused(frame, group, answer, now)
            self._close_group(frame, index)
        if not frame.stale:
            frame.lane.timeout_seconds = FRAME_TIMEOUT_SECONDS

    def no_responders(self, number: int, now: float) -> None:
        """Nobody listens where frame `number` was sent."""
        frame = self._frames.get(number)
        lane = frame.lane if frame is not None else self._pings.pop(number, None)
        if lane is None or lane.gone:
            return
        lane.gone = True
        del self._lanes[lane.server]
        for other in self._frames.values():
            if other.lane is lane:
                self._give_up(other)
        error = UnavailableError(reason=f"server {lane.server!r} is gone")
        for queue in self._active.values():
            if queue.lane is lane and not queue.empty:
                self._retry(queue, error, now, forget_owner=True)
            elif queue.state is _IDLE and queue.has_unsent:
                # A read was on its way there, and its store has another owner since.
                self._activate(queue)
        if lane.server not in self._suspected:
            self._suspected.add(lane.server)
            self._suspects.append(Suspect(lane.server, lane.incarnation))

    def refused(self, server: str, error: HoldfastError) -> None:
        """The bus refuses what goes to `server`, for all stores: nothing of it was received."""
        lane = self._lanes.get(server)
        if lane is None:
            return
        for frame in list(self._frames.values()):
            if frame.lane is lane:
                self._give_up(frame)
        for queue in self._active.values():
            # One that is being resolved goes there again, if its owner is still this server.
            resolving = queue.state is QueueState.RESOLVING
            if queue.lane is lane and not queue.empty and not resolving:
                queue.requeue()
                queue.state = _IDLE
                self._fail_queue(queue, error)
        lane.line.clear()

    def suspect_answered(self, server: str) -> None:
        """The coordinator has looked after `server`: what waited for that need not wait longer."""
        self._suspected.discard(server)
        for queue in self._active.values():
            if queue.state is QueueState.WAITING and queue.owner is None:
                self._activate(queue)

    def resolved(self, key: StoreKey, owner: Owner) -> None:
        """The coordinator named the owner of a store."""
        queue = self._queues.get(key)
        if queue is None:
            return
        if queue.state is QueueState.RESOLVING:
            self._take_owner(queue, owner)
            self._activate(queue)
        elif queue.owner is not None and owner != queue.owner:
            # It was asked about because the old owner kept silent: so much for all it was sent.
            for frame in list(self._frames.values()):
                if frame.lane is queue.lane and not frame.stale:
                    self._lost(frame)
            self._take_owner(queue, owner)
            queue.requeue()
            if queue.state is not QueueState.WAITING and queue.has_unsent:
                self._activate(queue)

    def resolve_failed(self, key: StoreKey, error: HoldfastError, now: float) -> None:
        """The coordinator could not name the owner of a store, or could not be asked."""
        queue = self._queues.get(key)
        if queue is None or queue.state is not QueueState.RESOLVING:
            return
        if error.retryable:
            self._retry(queue, error, now, forget_owner=True)
            return
        queue.state = _IDLE
        self._fail_queue(queue, error)

    def reconnected(self) -> None:
        """The bus is back: whatever was on its way may be lost, so all of it goes again."""
        for frame in self._frames.values():
            self._give_up(frame)
        for queue in self._active.values():
            queue.requeue()
            if queue.state is QueueState.RESOLVING:
                self._unresolved.append(queue.key)
            elif queue.has_unsent:
                self._activate(queue)

    def tick(self, now: float) -> None:
        """Time has passed: see `wake_at`."""
        while self._backing_off and self._backing_off[0][0] <= now:
            at, _, queue = heappop(self._backing_off)
            if queue.state is QueueState.WAITING and queue.retry_at == at:
                self._activate(queue)
        if now >= self._frame_timeout_at:
            self._sweep_frames(now)
        if now >= self._deadline_at:
            self._sweep_deadlines(now)

    def fail_all(self, error: HoldfastError) -> None:
        """Answer everything with `error`."""
        for frame in self._frames.values():
            self._give_up(frame)
        self._frames.clear()
        for queue in self._queues.values():
            self._fail_queue(queue, error)
        self._active.clear()

    def owner_of(self, key: StoreKey) -> Owner | None:
        """The owner of a store, as far as known."""
        queue = self._queues.get(key)
        return None if queue is None else queue.owner

    def validate(self) -> None:
        """Check the invariants (in tests, after each event)."""
        in_queues = 0
        for queue in self._queues.values():
            counters = [group.counter for group in queue.groups]
            assert counters == sorted(set(counters))
            assert all(counter < queue.next_counter for counter in counters)
            unsent = [group.frame == 0 for group in queue.groups if not group.answered]
            assert unsent == sorted(unsent), "groups to be sent come after those sent"
            in_queues += len(queue.writes) + len(queue.reads)
            in_queues += sum(len(g.operations) for g in queue.groups if not g.answered)
            assert queue.empty or queue.key in self._active
            assert queue.state is not _IDLE or not queue.has_unsent
        reading = 0
        for frame in self._frames.values():
            for group in frame.groups:
                if group is not None and not group.counter and group.frame == frame.number:
                    reading += len(group.operations)
        assert in_queues + reading == self.pending_count, (in_queues, reading, self.pending_count)
        for lane in self._lanes.values():
            live = [f for f in self._frames.values() if f.lane is lane and not f.stale]
            assert sum(f.counts for f in live) == lane.frames_in_flight <= FRAMES_IN_FLIGHT
            assert len(live) - lane.frames_in_flight == lane.stored_frames <= MAX_STORED_FRAMES

    # Queues

    def _waiting_bytes(self) -> int:
        """Count what waits, or is on its way and not answered; but for reads on their way."""
        size_bytes = 0
        for queue in self._active.values():
            size_bytes += sum(map(len, map(_packed, queue.writes)))
            size_bytes += sum(map(len, map(_packed, queue.reads)))
            size_bytes += sum(group.size_bytes for group in queue.groups if not group.answered)
        return size_bytes

    def _open(self, key: StoreKey) -> StoreQueue:
        if len(self._queues) >= MAX_KNOWN_STORES:
            self._forget_idle_stores()
        queue = self._queues[key] = StoreQueue(key, self._first_counter)
        return queue

    def _forget_idle_stores(self) -> None:
        """Forget a share of the idle stores. One that comes back starts above every counter that
        was forgotten, with a `first_unacked` that covers the jump, so no old outcome can be taken for its."""
        idle = [
            queue
            for queue in self._queues.values()
            if queue.empty and queue.state is _IDLE
        ]
        for queue in idle[: MAX_KNOWN_STORES // 4]:
            self._first_counter = max(self._first_counter, queue.next_counter)
            self._active.pop(queue.key, None)
            del self._queues[queue.key]

    def _activate(self, queue: StoreQueue) -> None:
        """Put a queue in line: of its owner's lane, or to be resolved."""
        self._active[queue.key] = queue
        lane = queue.lane
        if queue.owner is None or lane is None or lane.gone:
            queue.owner = queue.lane = None
            queue.state = QueueState.RESOLVING
            self._unresolved.append(queue.key)
        else:
            queue.state = _READY
            lane.line.append(queue)

    def _go_on(self, queue: StoreQueue) -> None:
        """`first_unacked` may have risen: let go what waited for that."""
        if queue.state is _IDLE and queue.has_unsent:
            self._activate(queue)

    def _take_owner(self, queue: StoreQueue, owner: Owner) -> None:
        queue.owner = owner
        lane = self._lanes.get(owner.server)
        if lane is None:
            lane = self._lanes[owner.server] = ServerQueue(owner.server)
        lane.incarnation = owner.incarnation
        queue.lane = lane

    def _retry(
        self, queue: StoreQueue, error: HoldfastError, now: float, *, forget_owner: bool
    ) -> None:
        queue.requeue()
        queue.last_error = error
        queue.attempt += 1
        if forget_owner:
            queue.owner = None
        if queue.attempt == 1 and isinstance(error, NotOwnerError | WriterGapError):
            self._activate(queue)
            return
        delay = min(BACKOFF_MAX_SECONDS, BACKOFF_SECONDS * 2 ** min(queue.attempt - 1, 16))
        queue.retry_at = now + delay * self._jitter()
        queue.state = QueueState.WAITING
        self._backoff_count += 1
        heappush(self._backing_off, (queue.retry_at, self._backoff_count, queue))

    def _fail_queue(self, queue: StoreQueue, error: HoldfastError) -> None:
        for group in list(queue.groups):
            if not group.answered:
                self._fail_group(group, error)
        for waiting in (queue.writes, queue.reads):
            self.pending_count -= len(waiting)
            for operation in waiting:
                fail(operation, error)
            waiting.clear()

    # Frames

    def _build(self, lane: ServerQueue, now: float) -> SendFrame | None:
        self._frame_number += 1
        # What waits is spread over the frames that may be in flight, so that this side works on
        # one answer while the server works on the next frame.
        limit_operations = min(
            MAX_FRAME_OPERATIONS,
            max(SPREAD_OPERATIONS, self.pending_count // FRAMES_IN_FLIGHT),
        )
        builder = FrameBuilder(
            self._frame_number, self._writer, self.frame_limit_bytes, limit_operations
        )
        while lane.line:
            queue = lane.line.popleft()
            if queue.state is not _READY or queue.lane is not lane:
                continue
            complete, dropped = queue.fill(builder)
            self.pending_count -= dropped
            if not complete:
                lane.line.append(queue)
                break
            queue.state = _IDLE
        if not builder.groups:
            return None
        frame = self._frames[builder.number] = Frame(builder.number, lane, builder.groups, now)
        lane.frames_in_flight += 1
        # Of `stored` writes alone: four small frames must not keep all else from the next object.
        self._give_up_place(frame)
        self._frame_timeout_at = min(self._frame_timeout_at, now + PING_SECONDS)
        return SendFrame(lane.server, builder.number, builder.payload())

    def _close_group(self, frame: Frame, index: int) -> None:
        """A group of a frame has had its answer, whatever it was."""
        frame.groups[index] = None
        frame.open_count -= 1
        if frame.open_count == 0:
            self._close_frame(frame)

    def _close_frame(self, frame: Frame) -> None:
        del self._frames[frame.number]
        if frame.counts:
            frame.counts = False
            frame.lane.frames_in_flight -= 1
        elif not frame.stale:
            frame.lane.stored_frames -= 1

    def _give_up_place(self, frame: Frame) -> None:
        """Let another frame be sent in the place of one that only waits for the server's bucket."""
        lane = frame.lane
        if lane.stored_frames < MAX_STORED_FRAMES and frame.waits_for_bucket:
            frame.counts = False
            lane.frames_in_flight -= 1
            lane.stored_frames += 1

    def _give_up(self, frame: Frame) -> None:
        """Wait no longer for a frame. Its reads wait again, its writes are the caller's to requeue."""
        if frame.stale:
            return
        frame.stale = True
        if frame.counts:
            frame.counts = False
            frame.lane.frames_in_flight -= 1
        else:
            frame.lane.stored_frames -= 1
        for group in frame.groups:
            if group is not None and not group.counter and group.frame == frame.number:
                group.frame = 0
                group.queue.requeue_reads(group.operations)
                self._active[group.queue.key] = group.queue

    def _answered(self, frame: Frame, group: QueuedGroup, outcome: Outcome, now: float) -> None:
        if group.answered:
            return
        queue, operations = group.queue, group.operations
        _, time, level, results = outcome
        durability = _DURABILITIES.get(level, Durability.DEFAULT)
        answers: Iterable[Any]
        if type(results) is Run:
            count = results[2]
            answers = results.acks(time, durability)
        else:
            count = len(results)
            answers = zip(results, repeat(time), repeat(durability), strict=False)
        for operation, answer in zip(operations, answers, strict=False):
            waiter = operation[1]
            if not waiter.done():
                waiter.set_result(answer)
        queue.attempt = 0
        queue.last_error = None
        if group.counter:
            group.answered = True
            self.pending_count -= len(operations) + queue.settle()
            if queue.writes and queue.state is _IDLE:
                self._go_on(queue)
            _, _, deadline_at, _, timeout_seconds = operations[0]
            self._credit.answered(
                count,
                now - (deadline_at - timeout_seconds),
                timeout_seconds,
                now,
                stored=group.durability == _STORED,
            )
        elif group.frame == frame.number:
            self.pending_count -= count
            if count < len(operations):
                queue.requeue_reads(operations[count:])
                if queue.state is _IDLE:
                    self._activate(queue)

    def _refused(self, frame: Frame, group: QueuedGroup, error: HoldfastError, now: float) -> None:
        if group.answered or group.frame != frame.number:
            return
        if not error.retryable:
            self._fail_group(group, error)
            self._go_on(group.queue)
            return
        if isinstance(error, BusyError) and group.durability != Durability.STORED:
            self._credit.late(now)
        if not group.counter:
            group.frame = 0
            group.queue.requeue_reads(group.operations)
        self._retry(group.queue, error, now, forget_owner=isinstance(error, NotOwnerError))

    def _fail_frame(self, frame: Frame, error: ProtocolError) -> None:
        """A server speaks otherwise: that is the answer of all that its reply might be for."""
        for group in frame.groups:
            if group is not None and not group.answered and group.frame == frame.number:
                self._fail_group(group, error)
                self._go_on(group.queue)
        if frame.number in self._frames:
            self._close_frame(frame)

    def _fail_group(self, group: QueuedGroup, error: HoldfastError) -> None:
        group.answered = True
        self.pending_count -= len(group.operations)
        for operation in group.operations:
            fail(operation, error)
        if group.counter:
            self.pending_count -= group.queue.settle()

    # Time

    def _sweep_frames(self, now: float) -> None:
        """Send again what kept unanswered for too long; forget frames nobody will answer.

        While a server keeps silent, it is asked every SILENCE_LOOK_SECONDS whether its stores have
        another owner: resends are rarer than that.
        """
        earliest = math.inf
        for frame in list(self._frames.values()):
            lane = frame.lane
            if not frame.stale and now >= frame.sent_at + lane.timeout_seconds:
                self._lost(frame)
                lane.timeout_seconds = min(FRAME_TIMEOUT_MAX_SECONDS, 2 * lane.timeout_seconds)
            if frame.stale:
                if now >= frame.sent_at + OPERATION_TIMEOUT_SECONDS:
                    self._close_frame(frame)
                else:
                    earliest = min(earliest, frame.sent_at + OPERATION_TIMEOUT_SECONDS)
                continue
            if frame.counts and now >= frame.sent_at + PING_SECONDS:
                self._give_up_place(frame)
            ping_at = max(frame.sent_at, lane.pinged_at) + PING_SECONDS
            if now >= ping_at:
                self._ping(lane, now)
                ping_at = now + PING_SECONDS
            earliest = min(earliest, frame.sent_at + lane.timeout_seconds, ping_at)
            if lane.timeout_seconds > FRAME_TIMEOUT_SECONDS and frame.looked_at <= now:
                frame.looked_at = now + SILENCE_LOOK_SECONDS
                # One store tells: if another server has it, all that was sent counts as lost. To ask
                # for each, of thousands, would keep the coordinator as busy as the server that is late.
                self._unresolved += [
                    group.queue.key
                    for group in frame.groups
                    if group is not None and group.queue.lane is lane
                ][:1]
        self._frame_timeout_at = earliest

    def _ping(self, lane: ServerQueue, now: float) -> None:
        """Ask a server that is late whether it is there. What was on its way to a server that died
        is lost in silence; a question to one that is gone has `no responders` for an answer."""
        self._pings.pop(lane.ping, None)
        self._frame_number += 1
        lane.ping, lane.pinged_at = self._frame_number, now
        self._pings[lane.ping] = lane
        self._questions.append(SendFrame(lane.server, lane.ping, encode_request(self._writer, ())))

    def _lost(self, frame: Frame) -> None:
        """A frame or its answer is lost, or late: send what is unanswered again, now."""
        self._give_up(frame)
        error = UnavailableError(reason=f"server {frame.lane.server!r} keeps silent")
        for group in frame.groups:
            if group is None:
                continue
            queue = group.queue
            if group.frame == frame.number:
                queue.requeue()
            queue.last_error = error
            self._unresolved.append(queue.key)
            if queue.state is _IDLE and queue.has_unsent:
                self._activate(queue)

    def _sweep_deadlines(self, now: float) -> None:
        """Answer what is past its deadline, and find the next deadline."""
        self._deadline_at = math.inf
        for key, queue in list(self._active.items()):
            earliest, dropped = queue.expire(now)
            self._deadline_at = min(self._deadline_at, earliest)
            self.pending_count -= dropped
            self._go_on(queue)
            if queue.empty and queue.state is not QueueState.RESOLVING:
                queue.state = _IDLE
                del self._active[key]
        for frame in self._frames.values():
            for group in frame.groups:
                if group is not None and not group.counter and not frame.stale:
                    at = group.queue.expire_operations(group.operations, now, sent=True)
                    self._deadline_at = min(self._deadline_at, at)

"""The coalescer: gathers operations into frames, and hands the answers to their callers.

Pure: events in (`submit`, `reply`, `resolved`, `tick`, ...), effects out (`turn`), `now` an
argument. `link.py` drives it. No timer delays a send: a frame with everything that waits leaves for
a server whenever fewer than FRAMES_IN_FLIGHT are unanswered there. So a lone write leaves at once,
and a busy client sends large frames.

It decides what an event means. `schedule.py` knows which store may send when, `in_flight.py` what
was sent and is not answered, and `credit.py` how much may wait.

Invariants:

- Every submitted operation is answered exactly once: with its result, the server's error, or an
  error when its deadline has passed.
- Writes of one store reach its owner in order, also across resends (`store_queue.py`).
- An answer to any copy of a group counts. A refusal counts only if it is for the copy sent last,
  because a newer copy will have its own answer.
- Writes of which a copy may be stored are not refused by whoever has not seen that copy: the bus,
  the coordinator, or the check of a token. They are tried again until their deadline.

What happens on each event:

    no responders   the server is gone: forget it, suspect it, ask the coordinator, send there
    not_owner       forget the owner, ask the coordinator, send there
    retryable       back off, send all unanswered writes of the store again, in order
        other error     it answers every operation in the group
        not allowed     the same, or retryable if an earlier copy of writes was not answered; so
                        are rates that are used up, and keys that the server lacks
        malformed       ignore the reply, as if it had been lost
        other version   the error answers every operation in the frame
        late answer     after PING_SECONDS ask whether the server is alive
    no answer       after FRAME_TIMEOUT_SECONDS send again, and ask whether the owner has changed
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any, Final

from holdfast.client.wire.credit import Credit
from holdfast.client.wire.effects import Effect, Resolve, Suspect
from holdfast.client.wire.frame import Frame
from holdfast.client.wire.in_flight import FramesInFlight
from holdfast.client.wire.reply import read_reply
from holdfast.client.wire.schedule import IDLE, Schedule
from holdfast.client.wire.store_queue import QueuedGroup, QueueState, StoreKey, StoreQueue
from holdfast.client.wire.waiting import Operation, PackedRun, fail
from holdfast.protocol.control import Owner
from holdfast.protocol.errors import (
    BusyError,
    ConnectionFailedError,
    HoldfastError,
    KeyUnavailableError,
    NotAllowedError,
    NotOwnerError,
    ProtocolError,
    RateLimitedError,
    RequestError,
    UnavailableError,
    UnsupportedVersionError,
)
from holdfast.protocol.frames import Outcome, Run
from holdfast.protocol.limits import (
    FRAME_RESERVE_BYTES,
    FRAME_TIMEOUT_SECONDS,
    FRAMES_IN_FLIGHT,
    MAX_INTEGER,
    MAX_WAITING_BYTES,
)
from holdfast.protocol.messages import Ack, Durability

_DURABILITIES: Final = {int(level): level for level in Durability}
_STORED: Final = int(Durability.STORED)
_new: Final = tuple.__new__


class Coalescer:
    """All operations of one client that are not answered yet."""

    def __init__(
        self, writer: bytes, max_payload_bytes: int, jitter: Callable[[], float] = lambda: 1.0
    ) -> None:
        """`writer` is this client's id. `jitter` returns factors of about 1 for the backoff."""
        self.frame_limit_bytes = max_payload_bytes - FRAME_RESERVE_BYTES
        self._credit = Credit()
        self._schedule = Schedule(jitter)
        self._in_flight = FramesInFlight(
            writer, self.frame_limit_bytes, self._schedule, self._credit
        )
        #: Shortcuts to fields of the two above, to save a look-up for every operation and frame.
        self._queues = self._schedule.queues
        self._frames = self._in_flight.frames
        self._suspects: list[Suspect] = []
        self._suspected: set[str] = set()
        self._deadline_at = math.inf

    @property
    def pending_count(self) -> int:
        """The number of operations submitted and not answered."""
        return self._credit.pending_count

    @property
    def wake_at(self) -> float:
        """The earliest time at which `tick` has something to do."""
        return min(self._deadline_at, self._in_flight.timeout_at, self._schedule.wake_at)

    @property
    def full(self) -> bool:
        """Whether there may be no `room`. It changes nothing, so any thread may call it; and it is
        called for each operation, so it counts nothing.
        """
        credit = self._credit
        return credit.pending_count >= credit.window or credit.bytes_bound >= MAX_WAITING_BYTES

    @property
    def room(self) -> int:
        """How many more operations of the present mean size to accept; none if it is 0 or less."""
        credit = self._credit
        if credit.bytes_bound >= MAX_WAITING_BYTES // 2:
            credit.counted(self._schedule.waiting_bytes())
        return credit.room

    # Events

    def submit(self, key: StoreKey, operation: Operation, is_write: bool) -> None:
        """Accept an operation for the store `key`."""
        packed, _, deadline_at, _, _ = operation
        queue = self._queues.get(key)
        if queue is None:
            queue = self._schedule.open(key)
        if is_write:
            queue.writes.append(operation)
            if type(packed) is not bytes:
                queue.holds_several = True
        else:
            queue.reads.append(operation)
        credit = self._credit
        credit.pending_count += 1
        credit.bytes_bound += len(packed)
        if deadline_at < self._deadline_at:  # noqa: PLR1730 (five times as fast as min)
            self._deadline_at = deadline_at
        if queue.state is IDLE:
            self._schedule.activate(queue)

    def turn(self, now: float) -> list[Effect]:
        """Return the effects that are due now."""
        effects: list[Effect] = []
        if self._suspects:
            effects += self._suspects
            self._suspects = []
        if self._schedule.unresolved:
            effects.append(Resolve(self._schedule.take_unresolved()))
        if self._in_flight.questions:
            effects += self._in_flight.take_questions()
        send = self._in_flight.send
        for server_queue in self._schedule.servers.values():
            while server_queue.line and server_queue.frames_in_flight < FRAMES_IN_FLIGHT:
                frame = send(server_queue, now)
                if frame is not None:
                    effects.append(frame)
        return effects

    def reply(self, number: int, payload: bytes, now: float) -> None:
        """Take a server's answer to some or all groups of frame `number`.

        Raises MalformedFrameError for a malformed reply, and then changes nothing.
        """
        frame = self._frames.get(number)
        if frame is None:
            self._in_flight.answered_late(number)
            return
        try:
            answers = read_reply(payload, frame)
        except UnsupportedVersionError as error:
            self._fail_frame(frame, error)
            return
        close_group = self._in_flight.close_group
        for index, answer in answers:
            group = frame.groups[index]
            if group is None:
                continue
            if type(answer) is Outcome:
                is_run = type(answer[3]) is Run
                if is_run and group.result_count == 1 and group.counter and not group.has_runs:
                    self._answered_alone(group, answer, now)
                else:
                    self._answered(frame, group, answer, now)
            else:
                assert isinstance(answer, HoldfastError)
                self._refused(frame, group, answer, now)
            close_group(frame, index)
        if not frame.stale:
            frame.server_queue.timeout_seconds = FRAME_TIMEOUT_SECONDS

    def no_responders(self, number: int, now: float) -> None:
        """Note that nobody listens where frame `number` was sent."""
        server_queue = self._in_flight.server_asked(number)
        if server_queue is None or server_queue.gone:
            return
        server = server_queue.server
        self._in_flight.give_up(server_queue)
        error = UnavailableError(reason=f"server {server!r} is gone")
        self._schedule.server_gone(server_queue, error, now)
        if server not in self._suspected:
            self._suspected.add(server)
            self._suspects.append(Suspect(server, server_queue.incarnation))

    def refused(self, server: str, error: HoldfastError, now: float) -> None:
        """Refuse all operations for `server`, because the bus refuses to send there. The server
        received none of what is in flight."""
        server_queue = self._schedule.servers.get(server)
        if server_queue is None:
            return
        self._in_flight.refused(server_queue)
        for queue in self._schedule.active.values():
            # A store that is being resolved goes there again if its owner is still this server.
            resolving = queue.state is QueueState.RESOLVING
            if queue.server_queue is server_queue and not queue.empty and not resolving:
                queue.requeue()
                queue.state = IDLE
                self._refuse_queue(queue, error, now, forget_owner=False)
            self._schedule.leave_line(queue, server_queue)
        server_queue.line.clear()

    def suspect_answered(self, server: str) -> None:
        """Note that the coordinator has checked `server`. Stores that waited for this wait
        no longer."""
        self._suspected.discard(server)
        self._schedule.suspect_answered()

    def resolved(self, key: StoreKey, owner: Owner) -> None:
        """Take the owner of a store, as the coordinator named it."""
        queue = self._queues.get(key)
        if queue is None:
            return
        if queue.state is QueueState.RESOLVING:
            self._schedule.take_owner(queue, owner)
            self._schedule.activate(queue)
        elif queue.owner is not None and owner != queue.owner:
            # The client asked because the old owner was silent.
            silent = queue.server_queue
            self._in_flight.owner_changed(silent)
            if silent is not None:
                self._schedule.leave_line(queue, silent)
            self._schedule.take_owner(queue, owner)
            queue.requeue()
            if queue.state is not QueueState.WAITING and queue.has_unsent:
                self._schedule.activate(queue)

    def resolve_failed(self, key: StoreKey, error: HoldfastError, now: float) -> None:
        """Note that the coordinator could not name the owner of a store, or could not be asked."""
        queue = self._queues.get(key)
        if queue is None or queue.state is not QueueState.RESOLVING:
            return
        if error.retryable:
            self._schedule.retry(queue, error, now, forget_owner=True)
            return
        queue.state = IDLE
        self._refuse_queue(queue, error, now, forget_owner=True)

    def reconnected(self) -> None:
        """Send everything unanswered again: the bus is back, and frames in flight may be lost."""
        self._in_flight.give_up()
        self._schedule.reconnected()

    def tick(self, now: float) -> None:
        """Handle the passing of time; see `wake_at`."""
        self._schedule.wake(now)
        if now >= self._in_flight.timeout_at:
            self._in_flight.sweep(now)
        if now >= self._deadline_at:
            self._deadline_at, dropped = self._schedule.expire(now)
            self._credit.pending_count -= dropped
            self._deadline_at = min(self._deadline_at, self._in_flight.expire_reads(now))

    def fail_all(self, error: HoldfastError) -> None:
        """Answer everything with `error`; what may be stored is not refused, but given up."""
        self._in_flight.give_up()
        self._frames.clear()
        if isinstance(error, RequestError):
            given_up = ConnectionFailedError(url="NATS", reason=str(error))
            for queue in self._queues.values():
                for group in queue.in_doubt:
                    self._fail_group(group, given_up)
        for queue in self._queues.values():
            self._fail_queue(queue, error)
        self._schedule.active.clear()

    def owner_of(self, key: StoreKey) -> Owner | None:
        """Return the owner of a store, if it is known."""
        queue = self._queues.get(key)
        return None if queue is None else queue.owner

    def writes_of(self, key: StoreKey) -> tuple[int, int]:
        """Return two numbers of writes of a store, which only grow: all below the first are
        answered or given up, and all that were sent so far are below the second."""
        queue = self._queues.get(key)
        return (MAX_INTEGER, 0) if queue is None else (queue.first_unacked, queue.next_counter)

    def validate(self) -> None:
        """Check the invariants (in tests, after each event)."""
        held, reading = self._schedule.validate(), self._in_flight.validate()
        assert held + reading == self.pending_count, (held, reading, self.pending_count)

    # Answers

    def _answered(self, frame: Frame, group: QueuedGroup, outcome: Outcome, now: float) -> None:
        if group.answered:
            return
        credit = self._credit
        queue, operations = group.queue, group.operations
        _, time, level, results = outcome
        durability = _DURABILITIES.get(level, Durability.DEFAULT)
        answers: Iterable[Any]
        count = results[2] if type(results) is Run else len(results)
        if group.has_runs:
            answers = _answers_with_runs(operations, results, time, durability)
        elif type(results) is Run:
            answers = results.acks(time, durability)
        else:
            answers = zip(results, repeat(time), repeat(durability), strict=False)
        for operation, answer in zip(operations, answers, strict=False):
            waiter = operation[1]
            if not waiter.done():
                waiter.set_result(answer)
        queue.attempt = 0
        queue.last_error = None
        if group.counter:
            group.answered = True
            credit.pending_count -= len(operations) + queue.settle()
            if queue.writes and queue.state is IDLE:
                self._schedule.resume(queue)
            _, _, deadline_at, _, timeout_seconds = operations[0]
            credit.answered(
                count,
                now - (deadline_at - timeout_seconds),
                timeout_seconds,
                now,
                stored=group.durability == _STORED,
            )
        elif group.frame == frame.number:
            credit.pending_count -= count
            if count < len(operations):
                queue.requeue_reads(operations[count:])
                if queue.state is IDLE:
                    self._schedule.activate(queue)

    def _answered_alone(self, group: QueuedGroup, outcome: Outcome, now: float) -> None:
        """Do what `_answered` does for a group of one write whose result is one of a run. With many
        stores nearly all are, and this takes less time."""
        if group.answered:
            return
        group.answered = True
        queue, credit = group.queue, self._credit
        _, waiter, deadline_at, _, timeout_seconds = group.operations[0]
        if not waiter.done():
            _, time, level, (seq, revision, _, chain) = outcome
            durability = _DURABILITIES.get(level, Durability.DEFAULT)
            # Faster than the class: see `_new` in `frames.py`.
            fields = (seq or None, revision, time, durability, False, chain or None)
            waiter.set_result(_new(Ack, fields))
        queue.attempt = 0
        queue.last_error = None
        groups = queue.groups
        if len(groups) == 1:
            groups.clear()
            credit.pending_count -= 1
        else:
            credit.pending_count -= 1 + queue.settle()
        if queue.writes and queue.state is IDLE:
            self._schedule.resume(queue)
        credit.answered(
            1,
            now - (deadline_at - timeout_seconds),
            timeout_seconds,
            now,
            stored=group.durability == _STORED,
        )

    def _refused(self, frame: Frame, group: QueuedGroup, error: HoldfastError, now: float) -> None:
        group.refused_count += 1
        if group.answered or group.frame != frame.number:
            return
        retryable = error.retryable
        if isinstance(error, NotAllowedError | RateLimitedError | KeyUnavailableError):
            # Refused before it reached the store, which may have an earlier copy all the same: then
            # this is no answer.
            retryable = group.may_be_stored
        if not retryable:
            self._fail_group(group, error)
            self._schedule.resume(group.queue)
            return
        if isinstance(error, BusyError) and group.durability != Durability.STORED:
            self._credit.late(now)
        if not group.counter:
            group.frame = 0
            group.queue.requeue_reads(group.operations)
        self._schedule.retry(group.queue, error, now, forget_owner=isinstance(error, NotOwnerError))

    def _fail_frame(self, frame: Frame, error: ProtocolError) -> None:
        """Fail everything that a reply in another protocol version might be for."""
        for group in frame.groups:
            if group is not None and not group.answered and group.frame == frame.number:
                self._fail_group(group, error)
                self._schedule.resume(group.queue)
        if frame.number in self._frames:
            self._in_flight.close(frame)

    def _fail_group(self, group: QueuedGroup, error: HoldfastError) -> None:
        group.answered = True
        self._credit.pending_count -= len(group.operations)
        for operation in group.operations:
            fail(operation, error)
        if group.counter:
            self._credit.pending_count -= group.queue.settle()

    def _refuse_queue(
        self, queue: StoreQueue, error: HoldfastError, now: float, *, forget_owner: bool
    ) -> None:
        """Answer what a store has with `error`. If that says that nothing was done, writes that may
        be stored are tried again instead."""
        if not isinstance(error, RequestError) or not queue.in_doubt:
            self._fail_queue(queue, error)
            return
        for group in list(queue.groups):
            if not (group.answered or group.may_be_stored):
                self._fail_group(group, error)
        self._fail_waiting(queue, error)
        if queue.in_doubt:
            self._schedule.retry(queue, error, now, forget_owner=forget_owner)

    def _fail_queue(self, queue: StoreQueue, error: HoldfastError) -> None:
        for group in list(queue.groups):
            if not group.answered:
                self._fail_group(group, error)
        self._fail_waiting(queue, error)

    def _fail_waiting(self, queue: StoreQueue, error: HoldfastError) -> None:
        for waiting in (queue.writes, queue.reads):
            failed = list(waiting)
            # Whoever is told may submit another operation at once: that one stays.
            waiting.clear()
            self._credit.pending_count -= len(failed)
            for operation in failed:
                fail(operation, error)


def _answers_with_runs(
    operations: list[Operation], results: Run | list[Any], time: int, durability: Durability
) -> Iterator[Any]:
    """Yield the answer to each operation of a group in which some are runs."""
    start = 0
    for packed, *_ in operations:
        end = start + (packed.operation_count if type(packed) is PackedRun else 1)
        if type(results) is Run:
            part = results.part(start, end - start)
            if type(packed) is PackedRun:
                yield part, time, durability
            else:
                yield part.acks(time, durability)[0]
        else:
            found = results[start:end]
            yield found if type(packed) is PackedRun else found[0], time, durability
        start = end

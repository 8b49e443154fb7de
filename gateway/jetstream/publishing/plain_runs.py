"""Plain messages of one stream, appended in runs.

A message that asks for nothing waits here until the client makes its next frame, in the same turn
of the loop if the stream is idle. While a run is unanswered, more messages gather for the next one,
but for GATHER_SECONDS at most. So a lone message loses no time, and under load there are few runs
and frames. A message costs a few elements of lists: it has neither a future nor an operation of its
own.

Many are two runs, so that callers in lockstep keep client, gateway and owner at work
(`lockstep.py`). While one is unanswered, only MIN_PART messages are worth a second: a run costs a
frame, a tick and a sync, and what publishers send one by one would become many small ones.

Runs leave in the order of their messages, and are stored in that order however many are unanswered:
each is a group of writes with a counter, or part of one. The owner refuses a group whose
predecessor it has not taken, and the client sends it again behind that (`store_queue.py`), also to
another owner, which has all groups before the last one that was stored. If a run is refused for
good, its publishers are told, and none of its messages is stored later; so is one that was given
up, which the owner refuses if it comes late. If another gateway serves the stream, its epoch lies
between two operations in the owner's order: what comes before is stored, and nothing behind it.

`submit` sends what waits before something that must come after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from holdfast.client.handles.serving import ServingStream
from holdfast.gateway.jetstream.wire.lockstep import MIN_PART, part_of, parts
from holdfast.gateway.jetstream.wire.ports import PortMessage
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.frames import Run
from holdfast.protocol.messages import Ack

#: Far less than a publisher notices under load, and several times a sync of a good disk. It matters
#: where answers take long: with durability `stored`, and with slow disks.
GATHER_SECONDS: Final = 0.005
#: The most messages of a run. A run of usual size fits into a frame several times.
RUN_MESSAGES: Final = 512
#: The most that they may take together, by `waiting_bytes`. A larger message is a run by itself.
RUN_BYTES: Final = 512 * 1024
#: What a waiting message takes besides its value, headers and subject.
_WAITING_BYTES: Final = 512


def waiting_bytes(message: PortMessage) -> int:
    """Return what a message takes until it is answered; more than in a frame."""
    subject, _, headers, payload = message
    return len(payload) + len(headers) + 4 * len(subject) + _WAITING_BYTES


def all_waiting_bytes(messages: Sequence[PortMessage]) -> tuple[int, int]:
    """Return the bytes of the values and headers of some messages, of one at least, and the sum of
    their `waiting_bytes`."""
    subjects, _, headers, payloads = zip(*messages, strict=True)
    content_bytes = sum(map(len, payloads)) + sum(map(len, headers))
    subjects_bytes = 4 * sum(map(len, subjects))
    return content_bytes, content_bytes + subjects_bytes + _WAITING_BYTES * len(messages)


#: Gets the messages of a run, their bytes, and `(results, time, durability)`, where results are a
#: Run or one for each message; or `(error, 0, None)` for all.
Answered = Callable[[list[PortMessage], int, Any], None]


class PlainRuns:
    """The plain messages of one stream that are not answered yet."""

    def __init__(self, store: ServingStream, answered: Answered) -> None:
        self._store = store
        self._answered = answered
        self._loop = asyncio.get_running_loop()
        self._waiting: list[PortMessage] = []
        self._waiting_bytes = 0
        #: The runs that are unanswered, and their messages.
        self._in_flight = 0
        self._in_flight_count = 0
        #: Whether the client will ask for what waits before its next frame.
        self._asked = False
        self._timer: asyncio.TimerHandle | None = None

    def add(self, message: PortMessage, size_bytes: int) -> None:
        """Append a message. `size_bytes` is that of `waiting_bytes`."""
        self._waiting.append(message)
        self._waiting_bytes += size_bytes
        if not self._asked:
            self._go_on()

    def add_all(self, messages: list[PortMessage], size_bytes: int) -> None:
        """Append some messages, of `size_bytes` in all, as `add` does one after the other."""
        self._waiting += messages
        self._waiting_bytes += size_bytes
        if not self._asked:
            self._go_on()

    def submit(self) -> None:
        """Send all that waits: what is appended next comes after it."""
        while self._waiting:
            self._send_run(RUN_MESSAGES)
        self._forget_timer()

    def drop(self) -> tuple[int, int]:
        """Forget what waits. Return how many messages that were, and their bytes."""
        dropped = len(self._waiting), self._waiting_bytes
        self._waiting, self._waiting_bytes = [], 0
        self._forget_timer()
        return dropped

    def answered(self, run: list[PortMessage], size_bytes: int, answer: Any) -> None:
        """Take the answer to a run; on the loop, among those to other operations."""
        self._in_flight -= 1
        self._in_flight_count -= len(run)
        self._answered(run, size_bytes, answer)
        if self._waiting and not self._asked:
            self._go_on()

    @property
    def _part(self) -> int:
        """The most messages of the next run."""
        return min(RUN_MESSAGES, part_of(self._in_flight_count + len(self._waiting)))

    @property
    def _may_send(self) -> bool:
        count = len(self._waiting)
        if not count or count >= RUN_MESSAGES or self._waiting_bytes >= RUN_BYTES:
            return count > 0
        if not self._in_flight:
            return True
        # Asked for each message that comes while a run is unanswered.
        return count >= MIN_PART and self._in_flight < parts(
            beside_owner=self._store.is_beside_owner
        )

    def _go_on(self) -> None:
        """See that what waits is sent in time."""
        if self._may_send:
            self._asked = True
            self._store.before_sending(self._send)
        elif self._timer is None:
            self._timer = self._loop.call_later(GATHER_SECONDS, self.submit)

    def _send(self) -> bool:
        """Send a run. Return whether to call again for another."""
        if self._may_send:
            self._send_run(self._part)
        self._asked = self._may_send
        if not self._waiting:
            self._forget_timer()
        elif not self._asked and self._timer is None:
            self._timer = self._loop.call_later(GATHER_SECONDS, self.submit)
        return self._asked

    def _send_run(self, most: int) -> None:
        messages, size_bytes = self._take(most)
        waiter = _Waiter(self, messages, size_bytes)
        self._in_flight += 1
        self._in_flight_count += len(messages)
        try:
            if len(messages) == 1:
                subject, _, headers, payload = messages[0]
                self._store.append_soon(waiter, subject, payload, headers)
            else:
                run = [(subject, payload, headers) for subject, _, headers, payload in messages]
                self._store.append_run_soon(waiter, run)
        except HoldfastError as error:
            waiter.set_result((error, 0, None))

    def _take(self, most: int) -> tuple[list[PortMessage], int]:
        """Return the messages of the next run, and their bytes."""
        waiting, size_bytes = self._waiting, self._waiting_bytes
        if len(waiting) <= most and size_bytes <= RUN_BYTES:
            self._waiting, self._waiting_bytes = [], 0
            return waiting, size_bytes
        count = size_bytes = 0
        for message in waiting[:most]:
            message_bytes = waiting_bytes(message)
            if count and size_bytes + message_bytes > RUN_BYTES:
                break
            count += 1
            size_bytes += message_bytes
        self._waiting = waiting[count:]
        self._waiting_bytes -= size_bytes
        return waiting[:count], size_bytes

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Waiter:
    """Waits for the answer to one run."""

    __slots__ = ("_is_done", "_messages", "_runs", "_size_bytes")

    def __init__(self, runs: PlainRuns, messages: list[PortMessage], size_bytes: int) -> None:
        self._runs = runs
        self._messages = messages
        self._size_bytes = size_bytes
        self._is_done = False

    def done(self) -> bool:
        return self._is_done

    def set_result(self, answer: Any) -> None:
        self._is_done = True
        if type(answer) is Ack:
            seq, revision, time, durability, *_ = answer
            answer = Run(seq or 0, revision, 1), time, durability
        elif len(self._messages) == 1 and not isinstance(answer[0], HoldfastError):
            result, time, durability = answer
            answer = [result], time, durability
        self._runs.answered(self._messages, self._size_bytes, answer)

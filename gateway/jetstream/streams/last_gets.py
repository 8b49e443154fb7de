"""Gets of the last message of one subject, as those of a key-value bucket: most gets are.

Those that arrive before the client's next frame, or while reads are on their way, travel together,
so a get costs neither a task nor a frame of its own. Many are two reads, so that callers in
lockstep keep client, gateway and owner at work (`lockstep.py`). Nothing is kept: every get is
answered from what its owner has after it was asked.

What waits is asked for where the client gathers its next frames, never among the answers to others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Generic, Protocol, TypeVar

from holdfast.client.handles.serving_wire import ServedMessage
from holdfast.client.wire.waiting import Waiter
from holdfast.gateway.jetstream.wire.lockstep import part_of, parts
from holdfast.protocol.errors import HoldfastError, internal_error

logger = logging.getLogger("holdfast.gateway")

#: The most subjects of a read: with at most 1 KiB each, they fit into a frame.
_SUBJECTS: Final = 256

#: Who asks: the inbox of a direct get, or a future.
T = TypeVar("T")

#: Who has asked, and the message, or None if there is none.
Answer = tuple[T, ServedMessage | None]


class LastReads(Protocol):
    """The reads of a ServingStream that are used here."""

    @property
    def is_beside_owner(self) -> bool: ...

    def before_sending(self, gather: Callable[[], bool]) -> None: ...

    def lasts_soon(self, waiter: Waiter, subjects: Sequence[str]) -> None: ...

    def found_lasts(self, answer: Any) -> tuple[list[ServedMessage], list[str], bool]: ...


class LastGets(Generic[T]):
    """The gets of one stream that are not answered. Each is given to `answer` once, or to `other`
    if the message has a large value, or to `failed`."""

    def __init__(
        self,
        store: LastReads,
        answer: Callable[[Sequence[Answer[T]]], None],
        other: Callable[[str, T], None],
        failed: Callable[[Sequence[T], HoldfastError], None],
    ) -> None:
        self._store = store
        self._answer = answer
        self._other = other
        self._failed = failed
        #: Those whose gets wait for a read, by subject.
        self._waiting: dict[str, list[T]] = {}
        self._reads = 0
        #: Whether the client will call `_read`.
        self._scheduled = False
        #: How many gets are not answered.
        self.count = 0

    def ask(self, subject: str, asker: T) -> None:
        """Answer a get of a subject, which has no wildcard."""
        self.count += 1
        askers = self._waiting.get(subject)
        if askers is not None:
            askers.append(asker)
            return
        self._waiting[subject] = [asker]
        if not self._scheduled:
            self._read_soon()

    @property
    def _may_read(self) -> bool:
        if not self._waiting:
            return False
        return self._reads < parts(beside_owner=self._store.is_beside_owner)

    def _read_soon(self) -> None:
        if self._may_read:
            self._scheduled = True
            self._store.before_sending(self._read)

    def _read(self) -> bool:
        """Ask the owner for a part of what waits. Return whether to call again for another."""
        if self._may_read:
            self._start(self._take_part(min(_SUBJECTS, part_of(self.count))))
        self._scheduled = self._may_read
        return self._scheduled

    def _take_part(self, most: int) -> dict[str, list[T]]:
        """Return who waits for the first subjects."""
        waiting = self._waiting
        if len(waiting) <= most:
            self._waiting = {}
            return waiting
        return {subject: waiting.pop(subject) for subject in list(islice(waiting, most))}

    def _start(self, asked: dict[str, list[T]]) -> None:
        self._reads += 1
        try:
            self._store.lasts_soon(_Read(self._take, self._failed, asked), list(asked))
        except HoldfastError as error:
            self._reads -= 1
            self.count -= _count(asked)
            self._fail(asked, error)

    def _take(self, asked: dict[str, list[T]], answer: Any) -> None:
        """Take what the owner answered."""
        self._reads -= 1
        self.count -= _count(asked)
        try:
            self._take_found(asked, *self._store.found_lasts(answer))
        except HoldfastError as error:
            self._fail(asked, error)
        finally:
            # What waits is read, whatever became of these.
            if not self._scheduled:
                self._read_soon()

    def _take_found(
        self,
        asked: dict[str, list[T]],
        found: Sequence[ServedMessage],
        large: Sequence[str],
        is_all: bool,
    ) -> None:
        answers: list[Answer[T]] = []
        for message in found:
            for asker in asked.pop(message.subject, ()):
                answers.append((asker, message))
        for subject in large:
            for asker in asked.pop(subject, ()):
                self._other(subject, asker)
        if is_all or not (found or large):
            answers += [(asker, None) for askers in asked.values() for asker in askers]
        else:
            # The page was full.
            self.count += _count(asked)
            self._start(asked)
        if answers:
            self._answer(answers)

    def _fail(self, asked: dict[str, list[T]], error: HoldfastError) -> None:
        self._failed([asker for askers in asked.values() for asker in askers], error)


def _count(asked: Mapping[str, Sequence[object]]) -> int:
    return sum(map(len, asked.values()))


class _Read(Generic[T]):
    """One read. It is the waiter of its operation."""

    __slots__ = ("_asked", "_failed", "_take")

    def __init__(
        self,
        take: Callable[[dict[str, list[T]], Any], None],
        failed: Callable[[Sequence[T], HoldfastError], None],
        asked: dict[str, list[T]],
    ) -> None:
        self._take = take
        self._failed = failed
        self._asked: dict[str, list[T]] | None = asked

    def done(self) -> bool:
        return self._asked is None

    def set_result(self, answer: Any) -> None:
        """The owner's answer; on the loop, among those to other operations."""
        asked, self._asked = self._asked, None
        if asked is None:
            return
        askers = [asker for each in asked.values() for asker in each]
        try:
            self._take(asked, answer)
        except Exception as error:
            # It costs these answers and nobody else's.
            logger.exception("jetstream.get_failed")
            self._failed(askers, internal_error("a get", error))

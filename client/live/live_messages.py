"""The state of one live stream: the owner's messages, and then the local ones that are
not confirmed.

Pure: changes, local writes and answers in; flights of writes and notices out. No loop, no clock.

Invariants:

- **Confirmed messages are in the order of their seqs.** Local ones follow in the order in which
  they were written, which is the order in which they are stored.
- **Each local message is stored once and shown once.** It carries its writer and number in a header
  (`LIVE_HEADER`), which identifies it in its answer, in a broadcast, or in a search after its
  answer was lost. One flight is sent at a time, is stored whole or not at all, and is never sent
  again before it is known not to be stored. (If all messages of a stored flight are removed before
  the search, and no broadcast of them was seen, the flight counts as not stored.)
- **A change counts once**: a message only moves to higher revisions, so older news from the
  follower does not undo what was read from the owner.
- A reset replaces everything at once, when the new state is complete.
- `load` adds all the older messages that were asked for, or none.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from holdfast.client.live.live_notices import Notices, Origin, Rejection
from holdfast.protocol.errors import BusyError, HoldfastError
from holdfast.protocol.limits import MAX_UNSAVED_BYTES, MAX_UNSAVED_WRITES
from holdfast.protocol.messages import Ack, Change, ChangeKind, Headers, LargeValue, Message
from holdfast.protocol.own_headers import LIVE_HEADER

M = TypeVar("M")

#: The header by which a live stream knows its messages again: `<writer>.<number>`.


class MessageChangeKind(StrEnum):
    """What happened to a message of a live stream."""

    #: A message was added: a local one at the end, a remote one in its place.
    ADDED = "added"
    #: A local message was stored and now has its seq.
    CONFIRMED = "confirmed"
    #: A message has a new value or new headers.
    REPLACED = "replaced"
    #: A message was deleted, trimmed or expired, or a local one was rejected.
    REMOVED = "removed"


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """A local message that is not confirmed. `last_seq` is the highest seq known when it was
    written, so its own seq will be higher."""

    number: int
    value: bytes
    headers: Headers
    last_seq: int
    ttl_seconds: float | None = None


class MessageChange(NamedTuple, Generic[M]):
    """What happened to `message`. `previous` is the replaced message, or the local message that is
    now confirmed; otherwise None.
    """

    kind: MessageChangeKind
    message: M
    previous: M | None
    origin: Origin


class LiveMessages:
    """The state of one replica of a stream, from `start_seq` on. It is complete after the first
    READY change."""

    def __init__(self, writer: str, start_seq: int = 1) -> None:
        """`writer` is unique to this replica, and has no dot."""
        self.start_seq = start_seq
        #: Confirmed messages, by ascending seq.
        self.messages: list[Message] = []
        #: Local messages that are not confirmed, in order.
        self.drafts: deque[Draft] = deque()
        self.notices: Notices[MessageChange[Message | Draft]] = Notices()
        self.last_write = 0
        self.unsaved_bytes = 0
        self._prefix = f"{writer}."
        self._last_seq = 0
        self._flight: list[Draft] = []
        #: The follower's revision, and the messages known beyond it, by ascending revision.
        self._revision = 0
        self._ahead: deque[Message] = deque()
        self._is_complete = False
        #: The state that is being read. It replaces `messages` when it is complete.
        self._staged: dict[int, Message] | None = {}
        #: Changes since the read of older messages began, or None if there is no such read.
        self._older: list[Change] | None = None

    # What the application does

    def append(
        self, value: bytes, headers: Headers, ttl_seconds: float | None = None
    ) -> None:
        """Write a message. Raises BusyError if too much is unsaved."""
        if (
            len(self.drafts) >= MAX_UNSAVED_WRITES
            or self.unsaved_bytes + len(value) > MAX_UNSAVED_BYTES
        ):
            raise BusyError(what="the queue of unsaved writes")
        self.last_write += 1
        draft = Draft(self.last_write, value, headers, self._last_seq, ttl_seconds)
        self.drafts.append(draft)
        self.unsaved_bytes += len(value)
        self.notices.change(MessageChange(MessageChangeKind.ADDED, draft, None, Origin.LOCAL))

    @property
    def first_unsaved(self) -> int:
        """The number of the oldest local write that is not settled, or of the next write if
        all are."""
        return self.drafts[0].number if self.drafts else self.last_write + 1

    # Sending, and the results

    def take_flight(self, limit: int, limit_bytes: int) -> list[Draft]:
        """Return the oldest drafts, at least one if there are any, to send in one batch with
        `headers_of` each. Call `stored`, `unsent`, `looked_for` or `rejected` before the
        next flight. A large value flies alone, since it is above `limit_bytes`."""
        flight: list[Draft] = []
        for draft in self.drafts:
            limit_bytes -= len(draft.value)
            if flight and (len(flight) >= limit or limit_bytes < 0):
                break
            if flight and draft.ttl_seconds != flight[0].ttl_seconds:
                break  # a batch has one ttl
            flight.append(draft)
        self._flight = flight
        return flight

    def headers_of(self, draft: Draft) -> dict[str, str]:
        """Return the headers to send with a draft."""
        return {**draft.headers, LIVE_HEADER: f"{self._prefix}{draft.number}"}

    def stored(self, acks: Iterable[Ack], large: LargeValue | None = None) -> None:
        """Note that the flight is stored, with these acks. `large` stands for the value of the only
        one, if that is a large one."""
        for draft, ack in zip(self._flight, acks, strict=True):
            seq = ack.seq or 0
            value = draft.value if large is None else b""
            headers = self.headers_of(draft)
            message = Message(seq, value, headers, ack.time, ack.revision, large)
            self._confirm(draft.number, message)
        self._flight = []

    def looked_for(self, messages: Iterable[Message]) -> None:
        """Find out whether a flight was stored whose answer was lost. `messages` are all that the
        owner has above the `last_seq` of its first draft, read when no copy that is still underway
        could be stored any more."""
        found = {message.headers.get(LIVE_HEADER): message for message in messages}
        wanted = [(draft, f"{self._prefix}{draft.number}") for draft in self._flight]
        if self._flight_was_seen() or any(name in found for _, name in wanted):
            for draft, name in wanted:
                if name in found:
                    self._confirm(draft.number, found[name])
                elif draft in self.drafts:
                    self._drop(draft, Origin.REMOTE)  # stored with the others, but removed since
        self._flight = []

    def unsent(self) -> None:
        """Note that the flight was not stored."""
        self._flight = []

    def rejected(self, error: HoldfastError) -> None:
        """Drop the flight, because the owner rejected it."""
        for draft in self._flight:
            self.notices.reject(Rejection(None, draft.value, error))
            self._drop(draft, Origin.REJECTED)
        self._flight = []

    # News from the owner

    def changed(self, change: Change) -> None:
        """Take the next change of the store from its subscription."""
        kind = change.kind
        if kind is ChangeKind.RESET:
            self._staged, self._older = {}, None
            self._ahead.clear()
        elif kind is ChangeKind.READY:
            self._complete(change.revision)
        elif self._staged is not None:
            apply_to(self._staged, change, self.start_seq)
        else:
            self._revision = change.revision
            while self._ahead and self._ahead[0].revision <= self._revision:
                self._ahead.popleft()
            if self._older is not None:
                self._older.append(change)
            if change.message is not None:
                self._set(change.message)
            elif kind is ChangeKind.TRIM:
                self._trim(change.end_seq, change.revision)
            else:
                self._delete(change.seqs, change.revision)

    # Older messages

    def begin_load(self) -> None:
        """Note that older messages are being read from the owner."""
        self._older = []

    def end_load(self, start_seq: int, rows: Iterable[Message]) -> bool:
        """Add the rows, all messages from `start_seq` up to the first one held. Return False if a
        reset in between has made them void."""
        older, self._older = self._older, None
        if older is None:
            return False
        if start_seq < self.start_seq:
            found = {row.seq: row for row in rows if row.seq < self.start_seq}
            for change in older:
                apply_to(found, change, start_seq, self.start_seq)
            self.messages[:0] = [found[seq] for seq in sorted(found)]
            self.start_seq = start_seq
        return True

    def cancel_load(self) -> None:
        """Note that the read of older messages has ended."""
        self._older = None

    def _complete(self, revision: int) -> None:
        """Replace the state by the staged one, which is complete as of `revision`."""
        staged, self._staged = self._staged or {}, None
        first, self._is_complete = not self._is_complete, True
        self._revision = revision
        for message in self._ahead:
            if message.revision > revision:
                staged[message.seq] = message
        before = {message.seq: message for message in self.messages}
        self.messages = [staged[seq] for seq in sorted(staged)]
        self._last_seq = max(self._last_seq, self.messages[-1].seq if self.messages else 0)
        if first:
            return
        for seq, message in before.items():
            if seq not in staged:
                self._tell(MessageChangeKind.REMOVED, message)
        for message in self.messages:
            previous = before.get(message.seq)
            draft = self._own_draft(message)
            if draft is not None:
                self._discard(draft)
                self._tell(MessageChangeKind.CONFIRMED, message, draft, Origin.LOCAL)
            elif previous is None:
                self._tell(MessageChangeKind.ADDED, message)
            elif previous.revision != message.revision:
                self._tell(MessageChangeKind.REPLACED, message, previous)

    def _set(self, message: Message) -> None:
        self._last_seq = max(self._last_seq, message.seq)
        draft = self._own_draft(message)
        if message.seq < self.start_seq:
            if draft is not None:
                self._drop(draft, Origin.LOCAL)  # stored below the first seq that is held
            return
        if draft is not None:
            self._discard(draft)
        at = bisect_left(self.messages, message.seq, key=_seq_of)
        if at < len(self.messages) and self.messages[at].seq == message.seq:
            previous = self.messages[at]
            if previous.revision < message.revision:
                self.messages[at] = message
                self._tell(MessageChangeKind.REPLACED, message, previous)
            return
        self.messages.insert(at, message)
        if draft is not None:
            self._tell(MessageChangeKind.CONFIRMED, message, draft, Origin.LOCAL)
        else:
            self._tell(MessageChangeKind.ADDED, message)

    def _trim(self, end_seq: int, revision: int) -> None:
        end = bisect_right(self.messages, end_seq, key=_seq_of)
        found = self.messages[:end]
        self.messages[:end] = [each for each in found if each.revision > revision]
        for message in found:
            if message.revision < revision:
                self._tell(MessageChangeKind.REMOVED, message)

    def _delete(self, seqs: Iterable[int], revision: int) -> None:
        for seq in seqs:
            at = bisect_left(self.messages, seq, key=_seq_of)
            if at == len(self.messages) or self.messages[at].seq != seq:
                continue
            if self.messages[at].revision < revision:
                self._tell(MessageChangeKind.REMOVED, self.messages.pop(at))

    # Where both meet

    def _confirm(self, number: int, message: Message) -> None:
        """Note that the owner's answer says that it stored a local message."""
        draft = self._draft(number)
        if draft is None:
            return  # the follower brought it first
        if message.revision <= self._revision:
            self._drop(draft, Origin.REMOTE)  # the follower has already seen it removed or replaced
            return
        self._ahead.append(message)
        self._set(message)

    def _own_draft(self, message: Message) -> Draft | None:
        """Return the draft that became `message`, or None."""
        name = message.headers.get(LIVE_HEADER)
        if not self.drafts or name is None or not name.startswith(self._prefix):
            return None
        number = name[len(self._prefix) :]
        return self._draft(int(number)) if number.isdecimal() else None

    def _draft(self, number: int) -> Draft | None:
        """Return the draft of this number, or None. It is the first one, unless a flight
        was rejected."""
        for draft in self.drafts:
            if draft.number >= number:
                return draft if draft.number == number else None
        return None

    def _flight_was_seen(self) -> bool:
        """Return whether the follower has already brought a message of the flight."""
        return any(self._draft(draft.number) is None for draft in self._flight)

    def _drop(self, draft: Draft, origin: Origin) -> None:
        self._discard(draft)
        self._tell(MessageChangeKind.REMOVED, draft, None, origin)

    def _discard(self, draft: Draft) -> None:
        if self.drafts[0] is draft:
            self.drafts.popleft()
        else:
            self.drafts.remove(draft)
        self.unsaved_bytes -= len(draft.value)

    def _tell(
        self,
        kind: MessageChangeKind,
        message: Message | Draft,
        previous: Message | Draft | None = None,
        origin: Origin = Origin.REMOTE,
    ) -> None:
        self.notices.change(MessageChange(kind, message, previous, origin))


def _seq_of(message: Message) -> int:
    return message.seq


def apply_to(
    messages: dict[int, Message], change: Change, start_seq: int, end_seq: int | None = None
) -> None:
    """Apply a change to the messages from `start_seq` up to `end_seq` (exclusive), read at any
    time. Messages that are newer than the change stay."""
    if change.message is not None:
        seq = change.message.seq
        if seq < start_seq or (end_seq is not None and seq >= end_seq):
            return
        if seq not in messages or messages[seq].revision < change.revision:
            messages[seq] = change.message
        return
    if change.kind is ChangeKind.TRIM:
        gone = [seq for seq in messages if seq <= change.end_seq]
    else:
        gone = [seq for seq in change.seqs if seq in messages]
    for seq in gone:
        if messages[seq].revision < change.revision:
            del messages[seq]

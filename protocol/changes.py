"""Changes on the wire: their numbers, and access to their rows by name.

A change is sent and stored as an array, `[number, ...]`; the comments below list the elements for
each number. Positions are fixed, trailing elements may be left out if nil, and later versions may
append more. Only this module knows the positions; all others read a row by names:

    row = message_set(change)      row.seq, row.value, row.headers, row.msg_id, row.expires

Each function expects a change of its own number: check `number_of` first. Code that runs for each
of many thousand plain appends uses the arrays directly, and names the benchmark that justifies it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeVar

from holdfast.protocol import frames
from holdfast.protocol.chain.hashing import leaf_of, leaf_of_set
from holdfast.protocol.errors import MalformedFrameError
from holdfast.protocol.frames import WireChange
from holdfast.protocol.header_block import HeaderBlock, headers_from_wire
from holdfast.protocol.messages import (
    Change,
    ChangeKind,
    Entry,
    LargeValue,
    Message,
    RemovalReason,
)

_Item = TypeVar("_Item")

# A change has the number of the operation that made it. Never renumber them.
#: [CHANGE_SET_MESSAGE, seq, value, headers, msg_id, expires, subject, time]; expires: the time when
#: its ttl ends, or NEVER_EXPIRES; time: that of a message that was written elsewhere before, in
#: place of the time of the change
CHANGE_SET_MESSAGE: Final = 1
# Removals end with a reason, one of `REASON_...`; without it a writer asked for it.
#: [CHANGE_DELETE_MESSAGES, [seq, ...], reason]
CHANGE_DELETE_MESSAGES: Final = 3
#: [CHANGE_TRIM, end_seq, reason]
CHANGE_TRIM: Final = 4
#: [CHANGE_SET_ENTRY, key, value, headers, expires, time]; time: of an entry that was written
#: elsewhere before, nil for that of the change.
CHANGE_SET_ENTRY: Final = 5
#: [CHANGE_DELETE_ENTRIES, [key, ...], reason, removal, [revision, ...]]; removal: a `Removal`, nil
#: if the values stay in the history of the kv, if it has one; the revisions: of former values that
#: leave it. Without keys it changes no state.
CHANGE_DELETE_ENTRIES: Final = 6
#: [CHANGE_CLEAR]
CHANGE_CLEAR: Final = 7
#: [CHANGE_CONFIGURE, config]: the new configuration, without defaults. Changes no state.
CHANGE_CONFIGURE: Final = 9
#: [CHANGE_PUT_CHUNK, upload_id, offset, data, crc32, clear_bytes]; crc32 covers the upload up to
#: the end of this chunk; clear_bytes: of a chunk that is kept encrypted, how long it is in clear.
#: Changes no state, and is broadcast without its data.
CHANGE_PUT_CHUNK: Final = 10
#: [CHANGE_DROP_UPLOADS, [upload_id, ...]]. Changes no state.
CHANGE_DROP_UPLOADS: Final = 11
# Changes of cursors, which a gateway keeps in the stream. They change no message.
#: [CHANGE_SET_CURSOR, name, config | nil, state | nil, [[seq, data], ...], [seq, ...]]; nil: as it
#: is; then the rows that are set, and the seqs of those that are removed
CHANGE_SET_CURSOR: Final = 13
#: [CHANGE_DELETE_CURSOR, name]
CHANGE_DELETE_CURSOR: Final = 14
# Changes of consumers. They change no message. A consumer's id is the revision that made it.
#: [CHANGE_CONSUMER_CONFIGURE, id, name, config, next_seq]
CHANGE_CONSUMER_CONFIGURE: Final = 16
#: [CHANGE_CONSUMER_FETCH, id, next_seq, deadline, [seq, ...], [[seq, delivery_count], ...], [seq,
#: ...], [seq, ...]]: delivered first, delivered again, found removed, given up
CHANGE_CONSUMER_FETCH: Final = 17
#: [CHANGE_CONSUMER_ACK, id, [seq, ...], [seq, ...], [[seq, deadline, delivery_count], ...]]: acked,
#: given up, to be delivered again at another time
CHANGE_CONSUMER_ACK: Final = 18
#: [CHANGE_CONSUMER_DELETE, id]
CHANGE_CONSUMER_DELETE: Final = 19

#: [CHANGE_ARCHIVE, end_seq, table, encrypted=False]: the values of messages up to end_seq are now
#: in `table`, and no longer in the owner's file; those that are encrypted only if `encrypted` says
#: so. Changes no state.
CHANGE_ARCHIVE: Final = 20

#: [CHANGE_RESERVE, config, revision, seq]: in the log of an ephemeral store alone, never sent. Its
#: next owner begins at this revision and after this seq, with this configuration and no content.
CHANGE_RESERVE: Final = 22

#: Changes that concern no message and no entry, and that leave nothing in a change log.
UPLOAD_CHANGES: Final = frozenset((CHANGE_PUT_CHUNK, CHANGE_DROP_UPLOADS))
#: Changes that followers skip, since they change no message and no entry.
STATELESS_CHANGES: Final = UPLOAD_CHANGES | {
    CHANGE_CONFIGURE,
    CHANGE_SET_CURSOR,
    CHANGE_DELETE_CURSOR,
    CHANGE_CONSUMER_CONFIGURE,
    CHANGE_CONSUMER_FETCH,
    CHANGE_CONSUMER_ACK,
    CHANGE_CONSUMER_DELETE,
    CHANGE_ARCHIVE,
    CHANGE_RESERVE,
}

#: Returns the number of a change: one of `CHANGE_...`.
number_of: Final = itemgetter(0)
#: The length of a set with a value and nothing else.
PLAIN_SET_ELEMENTS: Final = 3
_VALUE_AND_HEADERS: Final = 4
_SUBJECT_AT: Final = 6
_TIME_AT: Final = 7
_TIME_OF_ENTRY_AT: Final = 5
WITH_SUBJECT_ELEMENTS: Final = 7
#: In place of the end of a ttl: the message stays, whatever the maximum age of the stream is.
NEVER_EXPIRES: Final = 1 << 62
#: Changes that set a message or an entry.
SETS: Final = frozenset((CHANGE_SET_MESSAGE, CHANGE_SET_ENTRY))
#: Changes that delete messages or entries by name.
DELETES: Final = frozenset((CHANGE_DELETE_MESSAGES, CHANGE_DELETE_ENTRIES))

#: Why an owner removes something of its own accord: its ttl or age has ended, or a limit of the
#: store is exceeded.
REASON_TTL: Final = 1
REASON_LIMIT: Final = 2
_REASONS: Final = {
    None: RemovalReason.USER,
    REASON_TTL: RemovalReason.TTL,
    REASON_LIMIT: RemovalReason.LIMIT,
}
_REASON_AT: Final = 2

_HEADERS: Final = (dict, HeaderBlock)
_new: Final = tuple.__new__


class Removal(IntEnum):
    """Why keys of a kv were removed, and what becomes of their values in its history."""

    #: They were deleted: their values stay in the history.
    DELETED = 0
    #: Their ttl has ended: their last values are gone, earlier ones stay in the history.
    EXPIRED = 1
    #: A limit removed them, with their history.
    EVICTED = 2


class MessageSet(NamedTuple):
    """A message that was appended or replaced. `value` is bytes, or the fields of a LargeValue;
    `headers` are a map, or a header block as bytes."""

    seq: int
    value: Any
    headers: Any = None
    msg_id: str | None = None
    expires: int | None = None
    subject: str | None = None
    #: Of a message that was written elsewhere before. None: the time of the change.
    time: int | None = None


class EntrySet(NamedTuple):
    """A key that was set. `value` is bytes, or the fields of a LargeValue."""

    key: str
    value: Any
    headers: Any = None
    expires: int | None = None
    #: Of an entry that was written elsewhere before. None: the time of the change.
    time: int | None = None


class EntriesRemoved(NamedTuple):
    """Keys that were removed, why, and the revisions of former values that were removed."""

    keys: list[str]
    how: Removal
    versions: list[int]


class Chunk(NamedTuple):
    """A part of an upload. `crc32` covers the upload up to its end;
    `data` is None in a broadcast."""

    upload_id: bytes
    offset: int
    data: bytes | None
    crc32: int
    #: How long an encrypted chunk is in clear; None of any other.
    clear_bytes: int | None = None

    @property
    def end(self) -> int:
        """Where the chunk after it begins."""
        return self.offset + (
            len(self.data or b"") if self.clear_bytes is None else self.clear_bytes
        )


class Archived(NamedTuple):
    """The values of messages up to `end_seq` are in `table`."""

    end_seq: int
    table: str
    #: Whether encrypted ones are, too.
    encrypted: bool = False


class CursorSet(NamedTuple):
    """A cursor was created or changed: None keeps what it had. `rows` are `[seq, data]`."""

    name: str
    config: bytes | None
    state: bytes | None
    rows: list[list[Any]]
    removed: list[int]


class Reserved(NamedTuple):
    """The numbers after which the next owner of an ephemeral store begins."""

    config: dict[str, Any]
    revision: int
    last_seq: int


class ConsumerConfigured(NamedTuple):
    """A consumer was created to start at `next_seq`, or was reconfigured."""

    id: int
    name: str
    config: Any
    next_seq: int


class ConsumerFetched(NamedTuple):
    """Deliveries: first ones, and repeated ones with their counts;
    then removed and given up seqs."""

    id: int
    next_seq: int
    deadline: int
    first: list[int]
    again: list[list[int]]
    gone: list[int]
    given_up: list[int]


class ConsumerAcked(NamedTuple):
    """Seqs that were acknowledged and given up, and `[seq,
    deadline, count]` of rescheduled ones."""

    id: int
    acked: list[int]
    given_up: list[int]
    moved: list[list[int]]


def message_set(change: WireChange) -> MessageSet:
    """Return the fields of a set of a message."""
    if len(change) == PLAIN_SET_ELEMENTS:
        # See `frames._new`: this is the most frequent form.
        return _new(MessageSet, (change[1], change[2], None, None, None, None, None))
    if len(change) == _VALUE_AND_HEADERS:
        return _new(MessageSet, (change[1], change[2], change[3], None, None, None, None))
    if len(change) == WITH_SUBJECT_ELEMENTS:
        return _new(MessageSet, (*change[1:], None))
    return MessageSet(*change[1 : _TIME_AT + 1])


def leaf(change: WireChange, time: int) -> bytes:
    """Return the leaf, in the chain of its stream, of a set of a message at `time`."""
    seq, value, headers, _, _, subject, written = message_set(change)
    return leaf_of(seq, time if written is None else written, value, headers, subject)


def leaf_of_change(change: WireChange, revision: int, time: int) -> bytes:
    """Return the leaf, in the chain of its kv, of a set of an entry."""
    key, value, headers, _, written = entry_set(change)
    return leaf_of_set(revision, time if written is None else written, value, headers, key)


def entry_set(change: WireChange) -> EntrySet:
    """Return the fields of a set of an entry."""
    if len(change) == PLAIN_SET_ELEMENTS:
        return _new(EntrySet, (change[1], change[2], None, None, None))
    if len(change) == _VALUE_AND_HEADERS:
        return _new(EntrySet, (change[1], change[2], change[3], None, None))
    return EntrySet(*change[1 : _TIME_OF_ENTRY_AT + 1])


def set_value(change: WireChange) -> Any:
    """Return the value of a set of a message or an entry."""
    return change[2]


def set_key(change: WireChange) -> Any:
    """Return the seq or key that is set."""
    return change[1]


def large_value(change: WireChange) -> LargeValue | None:
    """Return the LargeValue of a set; None if the value is plain bytes."""
    value = change[2]
    return None if type(value) is bytes else LargeValue(*value[:4])


def is_plain_set(change: WireChange) -> bool:
    """Tell whether a set of a message has nothing but headers and a value of bytes."""
    return len(change) <= _VALUE_AND_HEADERS and type(change[2]) is bytes


def deleted(change: WireChange) -> list[Any]:
    """Return the seqs or keys that a delete names."""
    named: list[Any] = change[1]
    return named


def entries_removed(change: WireChange) -> EntriesRemoved:
    """Return the fields of a removal of entries."""
    _, keys, _, how, versions, *_ = (*change, None, None, None)
    return EntriesRemoved(keys, Removal(how or 0), versions or [])


def is_unseen(change: WireChange) -> bool:
    """Tell whether a removal of entries concerns the history alone: followers skip it."""
    return not change[1]


def trimmed_to(change: WireChange) -> int:
    """Return the last seq that a trim removes."""
    end_seq: int = change[1]
    return end_seq


def configured(change: WireChange) -> dict[str, Any]:
    """Return the configuration after a change, without defaults."""
    config: dict[str, Any] = change[1]
    return config


def reserved(change: WireChange) -> Reserved:
    """Return what a reservation says."""
    return Reserved(*change[1:4])


def end_of(previous_revision: int, changes: Sequence[WireChange]) -> int:
    """Return the revision that changes after `previous_revision` reach."""
    if changes and changes[-1][0] == CHANGE_RESERVE:
        return reserved(changes[-1]).revision
    return previous_revision + len(changes)


def chunk(change: WireChange) -> Chunk:
    """Return the fields of a chunk."""
    return Chunk(*change[1:6])


def without_data(change: WireChange) -> WireChange:
    """Return a chunk as it is broadcast, without its data, which followers do not use."""
    return [*change[:3], None, change[4]]


def dropped_uploads(change: WireChange) -> list[bytes]:
    """Return the ids of the uploads that a change drops."""
    upload_ids: list[bytes] = change[1]
    return upload_ids


def archived(change: WireChange) -> Archived:
    """Return what was archived, and where."""
    return Archived(*change[1:4])


def cursor_set(change: WireChange) -> CursorSet:
    """Return what a change sets of a cursor."""
    return CursorSet(*change[1:6])


def cursor_name(change: WireChange) -> str:
    """Return the name of the cursor that a change is about."""
    name: str = change[1]
    return name


def consumer_id(change: WireChange) -> int:
    """Return the id of the consumer that a change is about."""
    id_: int = change[1]
    return id_


def consumer_configured(change: WireChange) -> ConsumerConfigured:
    """Return the fields of a consumer's configuration."""
    return ConsumerConfigured(*change[1:5])


def consumer_fetched(change: WireChange) -> ConsumerFetched:
    """Return what a fetch delivered."""
    return ConsumerFetched(*change[1:8])


def consumer_acked(change: WireChange) -> ConsumerAcked:
    """Return the outcomes that workers reported."""
    return ConsumerAcked(*change[1:5])


def change_from_wire(wire: WireChange, revision: int, time: int) -> Change:
    """Return the change that an application sees. Raises MalformedFrameError."""
    try:
        number = wire[0]
        if number == CHANGE_SET_MESSAGE:
            length = len(wire)
            headers = headers_from_wire(wire[3]) if length > PLAIN_SET_ELEMENTS else {}
            seq, value, large = wire[1], wire[2], None
            subject = wire[6] if length > _SUBJECT_AT else None
            if (
                type(seq) is not int
                or type(headers) not in _HEADERS
                or (subject is not None and type(subject) is not str)
            ):
                raise TypeError("a seq, headers, or a subject")
            if type(value) is not bytes:
                large, value = frames.large_value_from_wire(value), b""
            written = time
            if length > _TIME_AT and wire[_TIME_AT] is not None:
                written = wire[_TIME_AT]
                if type(written) is not int:
                    raise TypeError("a time")
            # Does what the classes do, in half the time: followers make both for each message.
            message = _new(Message, (seq, value, headers, written, revision, large, subject))
            return _new(Change, (ChangeKind.SET, revision, time, message, None, (), (), 0, None))
        if number == CHANGE_SET_ENTRY:
            headers = headers_from_wire(wire[3]) if len(wire) > 3 else {}
            if type(wire[1]) is not str or type(headers) not in _HEADERS:
                raise TypeError("a key, or headers")
            written = time
            if len(wire) > _TIME_OF_ENTRY_AT and wire[_TIME_OF_ENTRY_AT] is not None:
                written = wire[_TIME_OF_ENTRY_AT]
                if type(written) is not int:
                    raise TypeError("a time")
            entry = Entry(wire[1], wire[2], headers, revision, written)
            if type(wire[2]) is not bytes:
                entry = entry._replace(value=b"", large=frames.large_value_from_wire(wire[2]))
            return Change(ChangeKind.SET, revision, time, entry=entry)
        if number == CHANGE_DELETE_MESSAGES:
            seqs = _all(int, wire[1])
            return Change(ChangeKind.DELETE, revision, time, seqs=seqs, reason=_reason(wire))
        if number == CHANGE_DELETE_ENTRIES:
            keys = _all(str, wire[1])
            return Change(ChangeKind.DELETE, revision, time, keys=keys, reason=_reason(wire))
        if number == CHANGE_TRIM:
            end_seq = _all(int, [wire[1]])[0]
            return Change(ChangeKind.TRIM, revision, time, end_seq=end_seq, reason=_reason(wire))
        if number == CHANGE_CLEAR:
            return Change(ChangeKind.TRIM, revision, time, reason=RemovalReason.USER)
    except (LookupError, TypeError) as error:
        raise MalformedFrameError(reason=f"a change of the wrong shape: {error}") from error
    raise MalformedFrameError(reason=f"unknown change {number!r}")


def without_value(change: WireChange) -> WireChange:
    """Return a set of an entry without its value and headers; another change as it is."""
    if number_of(change) == CHANGE_SET_ENTRY:
        return [CHANGE_SET_ENTRY, set_key(change), b""]
    return change


def without_values(broadcast: bytes) -> bytes:
    """Return a broadcast of a kv without values and headers. Raises MalformedFrameError."""
    epoch, previous_revision, time, changes, chain = frames.decode_changes(broadcast)
    told = [without_value(change) for change in changes]
    return frames.encode_changes(epoch, previous_revision, time, told, chain)


def with_reason(change: list[Any], reason: int | None) -> WireChange:
    """Return a removal with its reason; None if a writer asked for it."""
    return change if reason is None else [*change, reason]


def _reason(wire: WireChange) -> RemovalReason | None:
    """Return why something was removed; None for a reason of a later version."""
    number = wire[_REASON_AT] if len(wire) > _REASON_AT else None
    return _REASONS.get(number) if number is None or type(number) is int else None


def _all(item_type: type[_Item], items: Any) -> tuple[_Item, ...]:
    if type(items) is not list or any(type(item) is not item_type for item in items):
        raise TypeError(f"a list of {item_type.__name__}")
    return tuple(items)

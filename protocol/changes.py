"""Changes on the wire: their numbers, and their rows, read by names.

A change travels and is kept as an array, `[number, ...]`; the numbers below say what follows each.
Positions are fixed, trailing elements may be left out when nil, and later versions may append
elements. This module alone knows the positions; all others ask for a row by what it is:

    row = message_set(change)      row.seq, row.value, row.headers, row.msg_id, row.expires

Each function expects a change of its own number: ask `number_of` first. Code that runs for each of
many thousand plain appends reads the arrays directly, and names the benchmark that justifies it.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeVar

from holdfast.protocol import frames
from holdfast.protocol.errors import MalformedFrameError
from holdfast.protocol.frames import WireChange
from holdfast.protocol.messages import Change, ChangeKind, Entry, LargeValue, Message

_Item = TypeVar("_Item")

# A change has the number of the operation that made it. Never renumber.
#: [CHANGE_SET_MESSAGE, seq, value, headers, msg_id, expires]; expires: when its ttl ends
CHANGE_SET_MESSAGE: Final = 1
#: [CHANGE_DELETE_MESSAGES, [seq, ...]]
CHANGE_DELETE_MESSAGES: Final = 3
#: [CHANGE_TRIM, end_seq]
CHANGE_TRIM: Final = 4
#: [CHANGE_SET_ENTRY, key, value, headers, expires]
CHANGE_SET_ENTRY: Final = 5
#: [CHANGE_DELETE_ENTRIES, [key, ...]]
CHANGE_DELETE_ENTRIES: Final = 6
#: [CHANGE_CLEAR]
CHANGE_CLEAR: Final = 7
#: [CHANGE_CONFIGURE, config]: all of what is not the default from now on. Changes no state.
CHANGE_CONFIGURE: Final = 9
#: [CHANGE_PUT_CHUNK, upload_id, offset, data, crc32]; crc32: of all up to the end of this. Changes
#: no state, and is broadcast without its data.
CHANGE_PUT_CHUNK: Final = 10
#: [CHANGE_DROP_UPLOADS, [upload_id, ...]]. Changes no state.
CHANGE_DROP_UPLOADS: Final = 11
# Of consumers. They change no message; a consumer's id is the revision that made it.
#: [CHANGE_CONSUMER_CONFIGURE, id, name, config, next_seq]
CHANGE_CONSUMER_CONFIGURE: Final = 16
#: [CHANGE_CONSUMER_FETCH, id, next_seq, deadline, [seq, ...], [[seq, delivery_count], ...],
#: [seq, ...], [seq, ...]]: delivered first and again, found removed, given up
CHANGE_CONSUMER_FETCH: Final = 17
#: [CHANGE_CONSUMER_ACK, id, [seq, ...], [seq, ...], [[seq, deadline, delivery_count], ...]]: acked,
#: given up, to be delivered again at another time
CHANGE_CONSUMER_ACK: Final = 18
#: [CHANGE_CONSUMER_DELETE, id]
CHANGE_CONSUMER_DELETE: Final = 19

#: [CHANGE_ARCHIVE, end_seq, table]: the values of messages up to end_seq are in `table` from now
#: on, and no longer in the owner's file. Changes no state.
CHANGE_ARCHIVE: Final = 20

#: What concerns no message and no entry, and leaves nothing in a change log.
UPLOAD_CHANGES: Final = frozenset((CHANGE_PUT_CHUNK, CHANGE_DROP_UPLOADS))
#: What followers leave out: it changes no message and no entry.
STATELESS_CHANGES: Final = UPLOAD_CHANGES | {
    CHANGE_CONFIGURE,
    CHANGE_CONSUMER_CONFIGURE,
    CHANGE_CONSUMER_FETCH,
    CHANGE_CONSUMER_ACK,
    CHANGE_CONSUMER_DELETE,
    CHANGE_ARCHIVE,
}

#: Returns which change it is: one of `CHANGE_...`.
number_of: Final = itemgetter(0)
#: Elements of a set that has a value and nothing else.
PLAIN_SET_ELEMENTS: Final = 3
_VALUE_AND_HEADERS: Final = 4
#: Changes that set a message or an entry.
SETS: Final = frozenset((CHANGE_SET_MESSAGE, CHANGE_SET_ENTRY))
#: Changes that delete messages or entries, each named in the change.
DELETES: Final = frozenset((CHANGE_DELETE_MESSAGES, CHANGE_DELETE_ENTRIES))

_new: Final = tuple.__new__


class MessageSet(NamedTuple):
    """A message that was appended or replaced. `value`: bytes, or what stands for a large one."""

    seq: int
    value: Any
    headers: Any = None
    msg_id: str | None = None
    expires: int | None = None


class EntrySet(NamedTuple):
    """A key that was set. `value`: bytes, or what stands for a large one."""

    key: str
    value: Any
    headers: Any = None
    expires: int | None = None


class Chunk(NamedTuple):
    """A part of an upload. `crc32` is of all up to its end; `data` is None in a broadcast."""

    upload_id: bytes
    offset: int
    data: bytes | None
    crc32: int


class Archived(NamedTuple):
    """The values of messages up to `end_seq` are in `table`."""

    end_seq: int
    table: str


class ConsumerConfigured(NamedTuple):
    """A consumer was made, to begin at `next_seq`, or configured anew."""

    id: int
    name: str
    config: Any
    next_seq: int


class ConsumerFetched(NamedTuple):
    """Deliveries: for the first time, again with their counts; and what was found gone, or given
    up."""

    id: int
    next_seq: int
    deadline: int
    first: list[int]
    again: list[list[int]]
    gone: list[int]
    given_up: list[int]


class ConsumerAcked(NamedTuple):
    """What was acknowledged and given up, and `[seq, deadline, count]` of what is due at another
    time."""

    id: int
    acked: list[int]
    given_up: list[int]
    moved: list[list[int]]


def message_set(change: WireChange) -> MessageSet:
    """Return what a set of a message says."""
    if len(change) == PLAIN_SET_ELEMENTS:
        # As the class does, in half the time: what most are.
        return _new(MessageSet, (change[1], change[2], None, None, None))
    if len(change) == _VALUE_AND_HEADERS:
        return _new(MessageSet, (change[1], change[2], change[3], None, None))
    return MessageSet(*change[1:6])


def entry_set(change: WireChange) -> EntrySet:
    """Return what a set of an entry says."""
    if len(change) == PLAIN_SET_ELEMENTS:
        return _new(EntrySet, (change[1], change[2], None, None))
    if len(change) == _VALUE_AND_HEADERS:
        return _new(EntrySet, (change[1], change[2], change[3], None))
    return EntrySet(*change[1:5])


def set_value(change: WireChange) -> Any:
    """Return the value of a set, of a message or an entry."""
    return change[2]


def set_key(change: WireChange) -> Any:
    """Return what a set is of: a seq, or a key."""
    return change[1]


def large_value(change: WireChange) -> LargeValue | None:
    """Return what stands for the value of a set, if that is a large one."""
    value = change[2]
    return None if type(value) is bytes else LargeValue(*value[:4])


def is_plain_set(change: WireChange) -> bool:
    """Tell if a set of a message has nothing but a value of bytes and headers."""
    return len(change) <= _VALUE_AND_HEADERS and type(change[2]) is bytes


def deleted(change: WireChange) -> list[Any]:
    """Return the seqs or keys that a delete names."""
    named: list[Any] = change[1]
    return named


def trimmed_to(change: WireChange) -> int:
    """Return the last seq that a trim removes."""
    end_seq: int = change[1]
    return end_seq


def configured(change: WireChange) -> dict[str, Any]:
    """Return the configuration from a change on: all of what is not the default."""
    config: dict[str, Any] = change[1]
    return config


def chunk(change: WireChange) -> Chunk:
    """Return what a chunk says."""
    return Chunk(*change[1:5])


def without_data(change: WireChange) -> WireChange:
    """Return a chunk as it is broadcast: followers have no use for what is in it."""
    return [*change[:3], None, change[4]]


def dropped_uploads(change: WireChange) -> list[bytes]:
    """Return the uploads that a change drops."""
    upload_ids: list[bytes] = change[1]
    return upload_ids


def archived(change: WireChange) -> Archived:
    """Return what was archived, and where."""
    return Archived(*change[1:3])


def consumer_id(change: WireChange) -> int:
    """Return which consumer a change is of; all changes of consumers say so."""
    id_: int = change[1]
    return id_


def consumer_configured(change: WireChange) -> ConsumerConfigured:
    """Return what the configuration of a consumer says."""
    return ConsumerConfigured(*change[1:5])


def consumer_fetched(change: WireChange) -> ConsumerFetched:
    """Return what a fetch delivered."""
    return ConsumerFetched(*change[1:8])


def consumer_acked(change: WireChange) -> ConsumerAcked:
    """Return what workers said of deliveries."""
    return ConsumerAcked(*change[1:5])


def change_from_wire(wire: WireChange, revision: int, time: int) -> Change:
    """Return the change that an application sees. Raises MalformedFrameError."""
    try:
        number = wire[0]
        if number == CHANGE_SET_MESSAGE:
            headers = wire[3] if len(wire) > 3 and wire[3] else {}
            _check_set(wire, int, headers)
            message = Message(wire[1], wire[2], headers, time, revision)
            if type(wire[2]) is not bytes:
                message = message._replace(value=b"", large=frames.large_value_from_wire(wire[2]))
            return Change(ChangeKind.SET, revision, time, message=message)
        if number == CHANGE_SET_ENTRY:
            headers = wire[3] if len(wire) > 3 and wire[3] else {}
            _check_set(wire, str, headers)
            entry = Entry(wire[1], wire[2], headers, revision, time)
            if type(wire[2]) is not bytes:
                entry = entry._replace(value=b"", large=frames.large_value_from_wire(wire[2]))
            return Change(ChangeKind.SET, revision, time, entry=entry)
        if number == CHANGE_DELETE_MESSAGES:
            return Change(ChangeKind.DELETE, revision, time, seqs=_all(int, wire[1]))
        if number == CHANGE_DELETE_ENTRIES:
            return Change(ChangeKind.DELETE, revision, time, keys=_all(str, wire[1]))
        if number == CHANGE_TRIM:
            return Change(ChangeKind.TRIM, revision, time, end_seq=_all(int, [wire[1]])[0])
        if number == CHANGE_CLEAR:
            return Change(ChangeKind.TRIM, revision, time)
    except (LookupError, TypeError) as error:
        raise MalformedFrameError(reason=f"a change of the wrong shape: {error}") from error
    raise MalformedFrameError(reason=f"unknown change {number!r}")


def _check_set(wire: WireChange, target_type: type, headers: object) -> None:
    if type(wire[1]) is not target_type or type(headers) is not dict:
        raise TypeError("a seq or key, or headers")


def _all(item_type: type[_Item], items: Any) -> tuple[_Item, ...]:
    if type(items) is not list or any(type(item) is not item_type for item in items):
        raise TypeError(f"a list of {item_type.__name__}")
    return tuple(items)

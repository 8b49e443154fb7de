"""What a run leaves behind to be judged: operations, what followers saw, broadcasts, the final
state.

Plain data. Changes are brought to one form whatever their source, so that they can be compared:
`ChangeOf` says what happened at one revision of one store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from holdfast.protocol import changes, frames
from holdfast.protocol.access.rights import Right
from holdfast.protocol.compression import ENCODING_HEADER, decompressed
from holdfast.protocol.messages import Change, ChangeKind, Entry, Message
from tests.support.checking.grants import Admission, KnownToken, right_needed

Store = tuple[int, str]
"""Kind and name."""
Key = int | str
"""A seq of a stream, or a key of a kv."""


class What(StrEnum):
    """What a change did."""

    SET = "set"
    DELETE = "delete"
    #: Of a stream: everything up to `end`. Of a kv: everything.
    TRIM = "trim"
    #: Of the configuration: followers are not told.
    CONFIGURE = "configure"


class ChangeOf(NamedTuple):
    """One change. `keys` of a SET has one element; `end` is that of a stream's TRIM, None if it is
    not known.

    An ack says less of a removal than its broadcast: it names the keys that were asked for, and
    `bound` is how many of them a DELETE removed, or the end that a TRIM was asked for."""

    what: What
    keys: tuple[Key, ...] = ()
    value: bytes = b""
    end: int | None = None
    bound: int | None = None

    def covers(self, key: Key) -> bool:
        """Tell if this change is known to have changed `key`."""
        if self.what is What.TRIM:
            return type(key) is str or (self.end is not None and int(key) <= self.end)
        return key in self.keys


class Outcome(StrEnum):
    """How an operation ended."""

    OK = "ok"
    #: A definite error: it had no effect.
    REFUSED = "refused"
    #: It may have had its effect, or have it yet.
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Operation:
    """One call of a client. `invoked` and `returned` are positions in one order of all events, or
    times; while nothing has returned, `returned` is None and the outcome unknown."""

    client: str
    store: Store
    action: str
    invoked: float
    keys: tuple[Key, ...] = ()
    values: tuple[bytes, ...] = ()
    end: int | None = None
    expected: int | None = None
    #: What it sets has a ttl.
    expires: bool = False
    returned: float | None = None
    outcome: Outcome = Outcome.UNKNOWN
    #: Of a write that was acknowledged: its revisions and seqs, one for each value.
    revisions: tuple[int, ...] = ()
    seqs: tuple[int, ...] = ()
    #: Of a delete: how many went.
    count: int = 0
    duplicate: bool = False
    #: It was acknowledged as stored in the bucket.
    stored: bool = False
    #: Of a read: what it saw, by key, with revisions; and the store's revision, of a head.
    seen: dict[Key, tuple[bytes, int]] = field(default_factory=dict)
    head_revision: int = 0
    error: str = ""
    #: What to call it in a report, where that is finer than `action`.
    label: str = ""
    #: The ids of the tokens that its client had when it began, and when it was answered.
    token: str = ""
    token_at_return: str = ""

    @property
    def writes(self) -> bool:
        return self.action in ("append", "append_many", "set")

    @property
    def deletes(self) -> bool:
        return self.action in ("delete", "delete_all")

    @property
    def changes(self) -> bool:
        """It may change its store."""
        return self.writes or self.deletes

    def may_remove(self, key: Key) -> bool:
        """Tell if this is a delete that could have removed `key`."""
        if self.action == "delete":
            return key in self.keys
        if self.action != "delete_all":
            return False
        return self.end is None or type(key) is str or int(key) <= self.end


@dataclass(slots=True)
class Transaction:
    """Writes of one store that are to happen together, and what they rest on: keys with the
    revisions that were read. `writes` are among the history's operations too, those that set before
    those that delete."""

    client: str
    store: Store
    conditions: dict[Key, int]
    writes: list[Operation] = field(default_factory=list)
    outcome: Outcome = Outcome.UNKNOWN


@dataclass(slots=True)
class Delivery:
    """A message of a queue, as a worker had it. `asked` and `done` are positions in the order of
    all events, the times seconds of the run; `done` is set once an ack or a giving up was
    confirmed."""

    worker: str
    seq: int
    count: int
    asked: int
    #: No later than the owner's decision, or than its last confirmed prolongation.
    held_from: float
    #: No earlier than the owner's decision.
    received_at: float
    done: int | None = None
    #: It may have been handed back before its time.
    released: bool = False
    #: How many confirmations of an ack said that it counted.
    counted: int = 0


@dataclass(slots=True)
class Following:
    """What one follower was given, in order. `start_seq` None of a stream: live only."""

    follower: str
    store: Store
    start_seq: int | None = None
    prefix: str = ""
    #: The revision that history or state was asked for; what comes after it is live.
    live_after: int = 0
    changes: list[tuple[ChangeKind, int, ChangeOf | None]] = field(default_factory=list)
    #: When each of them was told, if that is measured.
    told_at: list[float] = field(default_factory=list)
    #: It ran until the end and had the time to catch up.
    complete: bool = False
    #: Whose it is.
    client: str = ""


@dataclass(frozen=True, slots=True)
class Broadcast:
    """One broadcast as it left a server."""

    incarnation: str
    store: Store
    epoch: int
    changes: tuple[tuple[int, ChangeOf], ...]


@dataclass(frozen=True, slots=True)
class Final:
    """A store after everything has healed: its head, and every row with its revision, in the order
    in which they were read."""

    revision: int
    last_seq: int
    rows: dict[Key, tuple[bytes, int]]
    #: How many rows the head says that there are.
    count: int | None = None


class History:
    """Everything that was seen of one run."""

    def __init__(self) -> None:
        #: All of the run.
        self.stores: tuple[Store, ...] = ()
        self.operations: list[Operation] = []
        self.followings: list[Following] = []
        self.transactions: list[Transaction] = []
        self.deliveries: list[Delivery] = []
        #: Nobody else changes a store, and nothing goes by itself: there are no limits and no ttl.
        self.closed = False
        #: A follower that was away for long may have to begin anew.
        self.may_reset = False
        #: The stream that is a queue; how long a delivery is its worker's, and how far the clocks
        #: of owners differ.
        self.queue: Store | None = None
        self.ack_wait_seconds = self.clock_skew_seconds = 0.0
        self.broadcasts: list[Broadcast] = []
        self.final: dict[Store, Final] = {}
        #: The same of a cluster that was rebuilt from the bucket alone, if there was one.
        self.rebuilt: dict[Store, Final] = {}
        #: The most messages or keys that a store may have, with what is old discarded.
        self.max_messages: dict[Store, int] = {}
        #: In a cluster that asks for tokens: what clients may do, all if they are not here; their
        #: tokens by id; and what servers admitted. How far a clock was behind at most, and when
        #: the seconds of the run begin, in those since 1970.
        self.rights: dict[str, Right] = {}
        self.tokens: dict[str, KnownToken] = {}
        self.admissions: list[Admission] = []
        self.clocks_behind_seconds = self.epoch_seconds = 0.0
        #: What the run itself found wrong, as text.
        self.failures: list[str] = []
        self._position = 0

    def invoke(self, client: str, store: Store, action: str, **fields: Any) -> Operation:
        """An operation begins."""
        operation = Operation(client, store, action, self.position(), **fields)
        self.operations.append(operation)
        return operation

    def complete(self, operation: Operation, outcome: Outcome) -> None:
        """An operation has ended; its results are set already. One that its client may not do
        has no effect, whatever is known of it."""
        if outcome is Outcome.UNKNOWN and not self.may_do(operation):
            outcome = Outcome.REFUSED
        operation.outcome = outcome
        operation.returned = self.position()

    def may_do(self, operation: Operation) -> bool:
        """Tell if the client of an operation has the right to it."""
        rights = self.rights.get(operation.client)
        return rights is None or right_needed(operation) in rights

    def position(self) -> int:
        """Return the position of something that happens now."""
        self._position += 1
        return self._position


def value_of(row: Message | Entry) -> bytes:
    """Return the value of a row, as its writer gave it; of a large one its sha256, which stands for
    it in a history."""
    if row.large is not None:
        return row.large.sha256.hex().encode()
    if ENCODING_HEADER in row.headers:
        return decompressed(row.value, row.headers, "a value on the wire")[0]
    return row.value


def change_of(change: Change) -> ChangeOf | None:
    """Return what a follower's change did; None of a mark."""
    if change.message is not None:
        return ChangeOf(What.SET, (change.message.seq,), value_of(change.message))
    if change.entry is not None:
        return ChangeOf(What.SET, (change.entry.key,), value_of(change.entry))
    if change.kind is ChangeKind.DELETE:
        return ChangeOf(What.DELETE, change.seqs or change.keys)
    if change.kind is ChangeKind.TRIM:
        return ChangeOf(What.TRIM, end=change.end_seq or None)
    return None


def change_of_wire(wire: frames.WireChange) -> ChangeOf:
    """Return what a change on the wire does."""
    if wire[0] in changes.STATELESS_CHANGES or _leaves_history(wire):
        return ChangeOf(What.CONFIGURE)
    found = change_of(changes.change_from_wire(wire, 0, 0))
    assert found is not None
    return found


def _leaves_history(wire: frames.WireChange) -> bool:
    return wire[0] == changes.CHANGE_DELETE_ENTRIES and changes.is_unseen(wire)


Reporter = Callable[[str], None]

"""The state of one live kv: what the owner has, what the application wrote, and both combined.

Pure: changes, local writes and answers in; flights of writes and notices out. No loop, no clock.

There are two layers: `confirmed` is what the owner is known to hold, and `_unsaved` holds local
writes that are not confirmed. The application sees the second on top of the first. Invariants:

- **A write is conditional on the state that it was made on** (`expected_revision`; 0: the key does
  not exist), so the owner refuses it if somebody else wrote in between, also if both create the
  same key.
- **A conflict is settled here, against what the owner has**: the three-way merge of the common
  base, the local value and the remote one is written on top of the remote one. So all replicas end
  with the owner's last value, whatever their merges do.
- **An own write counts once**: its answer and its broadcast may come in any order, and a write
  whose answer was lost is recognised by its value.
- **The owner's order is kept**: the confirmed state of a key only moves to higher revisions. Only a
  reset replaces everything at once, when the new state is complete.
- One write of a key is in flight at a time. Of later writes only the last one waits.
- **A large value is never merged**: its bytes are not held, and a LargeValue shows in their place;
  those of a local write are held until it is stored. If a merge would need a value that is not
  held, the local write is rejected and the owner's value stays.
- **Headers and ttl belong to the local write**: a merge keeps them, unless it chooses the remote
  value. An owner's value that is the local one counts as its write only with its headers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from types import MappingProxyType
from typing import Final, Generic, NamedTuple, TypeVar

from holdfast.client.live.live_notices import Notices, Origin, Rejection
from holdfast.protocol.errors import BusyError, HoldfastError, LargeValueNotHeldError
from holdfast.protocol.limits import MAX_UNSAVED_BYTES, MAX_UNSAVED_WRITES
from holdfast.protocol.messages import Change, ChangeKind, Entry, Headers, LargeValue

V = TypeVar("V")

NO_HEADERS: Final[Headers] = MappingProxyType({})

Merge = Callable[[bytes | None, bytes | None, bytes | None], bytes | None]
"""`(base, local, remote)` to the new value; None means that the key does not exist."""

Held = bytes | LargeValue
"""A value as it is held: its bytes, or the LargeValue that stands for it."""


def local_wins(base: bytes | None, local: bytes | None, remote: bytes | None) -> bytes | None:
    """The default merge: the last writer wins."""
    return local


class EntryChange(NamedTuple, Generic[V]):
    """The value of `key` has changed from `previous` to `value`. None means that the key does
    not exist.
    """

    key: str
    value: V | None
    previous: V | None
    origin: Origin


class EntryWrite(NamedTuple):
    """A write to send. A `value` of None deletes the key."""

    key: str
    value: bytes | None
    expected_revision: int
    headers: Headers = NO_HEADERS
    ttl_seconds: float | None = None


def _no_headers() -> Headers:
    return NO_HEADERS


class _State(StrEnum):
    #: To be sent.
    WAITING = "waiting"
    #: In flight.
    SENT = "sent"
    #: Refused: somebody else wrote first, and their write has not arrived here.
    CONFLICT = "conflict"


class _Known(NamedTuple):
    """What the owner has for a key; revision 0 means that the key does not exist."""

    value: Held | None
    revision: int


@dataclass(slots=True)
class _Unsaved:
    #: The number of the oldest write that this contains.
    number: int
    wanted: bytes | None
    #: The state that `wanted` was made on.
    base: _Known
    #: What the application wrote with it.
    headers: Headers = field(default_factory=_no_headers)
    ttl_seconds: float | None = None
    state: _State = _State.WAITING
    #: The value in flight, and what was sent with it.
    sent: bytes | None = None
    sent_headers: Headers = field(default_factory=_no_headers)
    sent_ttl_seconds: float | None = None
    #: The number of the oldest write since it was sent, 0 if none.
    next_number: int = 0
    #: `(value, headers)` of a write without an answer, which may be stored.
    unsure: tuple[bytes | None, Headers] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing but a value to store."""
        return not self.headers and self.ttl_seconds is None


_ABSENT: Final = _Known(None, 0)


class LiveEntries:
    """The state of one replica of a kv. It is complete after the first READY change."""

    def __init__(self, merge: Merge = local_wins) -> None:
        #: What the application sees.
        self.visible: dict[str, Held] = {}
        #: What the owner is known to hold.
        self.confirmed: dict[str, Entry] = {}
        self.notices: Notices[EntryChange[Held]] = Notices()
        #: The number of the last local write.
        self.last_write = 0
        self.unsaved_bytes = 0
        self._merge = merge
        self._unsaved: dict[str, _Unsaved] = {}
        self._first_unsaved: int | None = None
        #: Keys in the states WAITING and CONFLICT, in order.
        self._waiting: dict[str, None] = {}
        self._conflicts: dict[str, None] = {}
        #: The follower's revision, and the keys known beyond it, in the order in which they were
        #: learnt; some may be older than the first one.
        self._revision = 0
        self._ahead: dict[str, tuple[int, Entry | None]] = {}
        #: The state that is being read. It replaces `confirmed` when it is complete.
        self._staged: dict[str, Entry] | None = {}

    # What the application does

    def write(
        self,
        key: str,
        value: bytes | None,
        headers: Headers = NO_HEADERS,
        ttl_seconds: float | None = None,
    ) -> None:
        """Set `key`, or delete it. Raises BusyError if too much is unsaved."""
        unsaved = self._unsaved.get(key)
        size_bytes = len(value or b"")
        old_bytes = 0 if unsaved is None else len(unsaved.wanted or b"")
        if unsaved is None and len(self._unsaved) >= MAX_UNSAVED_WRITES:
            raise BusyError(what="the queue of unsaved writes")
        if size_bytes > old_bytes and (
            self.unsaved_bytes + size_bytes - old_bytes > MAX_UNSAVED_BYTES
        ):
            raise BusyError(what="the queue of unsaved writes")
        self.last_write += 1
        if unsaved is None:
            known = self._known(key)
            self._unsaved[key] = _Unsaved(self.last_write, value, known, headers, ttl_seconds)
            self._waiting[key] = None
            self.unsaved_bytes += size_bytes
        else:
            self._want(unsaved, value)
            unsaved.headers, unsaved.ttl_seconds = headers, ttl_seconds
            if unsaved.state is _State.SENT and not unsaved.next_number:
                unsaved.next_number = self.last_write
        self._show(key, Origin.LOCAL)

    @property
    def unsaved(self) -> tuple[str, ...]:
        """The keys whose last local write is not confirmed, in the order of their first writes."""
        return tuple(self._unsaved)

    @property
    def unsaved_count(self) -> int:
        return len(self._unsaved)

    @property
    def has_waiting(self) -> bool:
        """Whether there is something to send."""
        return bool(self._waiting)

    @property
    def first_unsaved(self) -> int:
        """The number of the oldest local write that is not settled, or of the next write if
        all are."""
        if self._first_unsaved is None:
            numbers = (unsaved.number for unsaved in self._unsaved.values())
            self._first_unsaved = min(numbers, default=self.last_write + 1)
        return self._first_unsaved

    @property
    def conflicts(self) -> tuple[str, ...]:
        """Keys in conflict with somebody else's write that has not arrived."""
        return tuple(self._conflicts)

    # Sending, and the results

    def take_flight(self, limit: int, limit_bytes: int) -> list[EntryWrite]:
        """Return writes to send now. Call `stored`, `refused`, `unanswered` or `rejected` for each
        of them before the next flight."""
        flight: list[EntryWrite] = []
        for key in list(islice(self._waiting, limit)):
            if limit_bytes <= 0:
                break
            unsaved = self._unsaved[key]
            del self._waiting[key]
            if unsaved.wanted is None and unsaved.base.value is None and unsaved.unsure is None:
                self._settle(key, Origin.LOCAL)  # created and deleted before it was sent
                continue
            unsaved.state, unsaved.sent = _State.SENT, unsaved.wanted
            unsaved.sent_headers = unsaved.headers
            unsaved.sent_ttl_seconds = unsaved.ttl_seconds
            limit_bytes -= len(unsaved.wanted or b"")
            flight.append(
                EntryWrite(
                    *(key, unsaved.wanted, unsaved.base.revision),
                    *(unsaved.headers, unsaved.ttl_seconds),
                )
            )
        return flight

    def stored(
        self, key: str, revision: int, time: int, large: LargeValue | None = None
    ) -> None:
        """Note that the owner stored what was sent of `key`, perhaps as a large value."""
        unsaved = self._unsaved[key]
        value: Held | None = large or unsaved.sent
        entry = None
        if value is not None:
            held = value if isinstance(value, bytes) else b""
            entry = Entry(key, held, dict(unsaved.sent_headers), revision, time, large)
        self._learn(key, revision, entry)
        if not unsaved.next_number:
            self._settle(key, Origin.REMOTE)
            return
        self._renumber(unsaved)
        unsaved.unsure = None
        unsaved.base = _ABSENT if value is None else _Known(value, revision)
        self._wait(key, unsaved)
        self._reconsider(key, unsaved)

    def refused(self, key: str) -> None:
        """Note that somebody else wrote first. It is settled once their write is known."""
        unsaved = self._unsaved[key]
        unsaved.state, unsaved.next_number = _State.CONFLICT, 0
        if self._known(key).revision == unsaved.base.revision:
            self._conflicts[key] = None
        else:
            self._reconsider(key, unsaved)

    def unanswered(self, key: str) -> None:
        """Note that what was sent of `key` may be stored or not. It is sent again, on the
        same base."""
        unsaved = self._unsaved[key]
        unsaved.unsure, unsaved.next_number = (unsaved.sent, unsaved.sent_headers), 0
        self._wait(key, unsaved)
        self._reconsider(key, unsaved)

    def rejected(self, key: str, error: HoldfastError) -> None:
        """Drop what was sent of `key`, because the owner rejected it. A later write stays."""
        unsaved = self._unsaved[key]
        self.notices.reject(Rejection(key, unsaved.sent, error))
        if unsaved.next_number:
            self._renumber(unsaved)
            self._wait(key, unsaved)
            self._reconsider(key, unsaved)
        else:
            self._settle(key, Origin.REJECTED)

    # News from the owner

    def found(self, key: str, entry: Entry | None, revision: int) -> None:
        """Take the owner's answer about `key`. The store's revision, asked for before,
        was `revision`."""
        self._learn(key, entry.revision if entry is not None else revision, entry)
        if key in self._conflicts:
            self._reconsider(key, self._unsaved[key])
        else:
            self._moved(key)

    def changed(self, change: Change) -> None:
        """Take the next change of the store from its watcher."""
        kind = change.kind
        if kind is ChangeKind.RESET:
            self._staged = {}
            self._ahead.clear()
        elif kind is ChangeKind.READY:
            self._complete(change.revision)
        elif self._staged is not None:
            _apply(self._staged, change)
        else:
            self._revision = change.revision
            keys = change.keys
            if change.entry is not None:
                keys = (change.entry.key,)
            elif kind is ChangeKind.TRIM:
                keys = tuple({**self.confirmed, **self._conflicts})
            for key in keys:
                if self._revision_of(key) < change.revision:
                    self._hold(self.confirmed, key, change.entry)
                    self._moved(key)
            self._forget_ahead()

    def _complete(self, revision: int) -> None:
        """Replace the state by the staged one, which is complete as of `revision`."""
        staged, self._staged = self._staged or {}, None
        self._revision = revision
        self._forget_ahead()
        for key, (at, entry) in self._ahead.items():
            if at > revision:
                self._hold(staged, key, entry)
        before, self.confirmed = self.confirmed, staged
        for key in [*before, *(key for key in staged if key not in before), *self._conflicts]:
            self._moved(key)

    def _learn(self, key: str, revision: int, entry: Entry | None) -> None:
        """Note that the owner has `entry` for `key` since `revision`. The owner's answer said so,
        not the follower."""
        if revision <= self._revision or revision <= self._revision_of(key):
            return
        self._ahead.pop(key, None)
        self._ahead[key] = (revision, entry)
        self._hold(self.confirmed, key, entry)

    def _revision_of(self, key: str) -> int:
        if key in self._ahead:
            return self._ahead[key][0]
        return self._known(key).revision

    def _forget_ahead(self) -> None:
        while self._ahead:
            key = next(iter(self._ahead))
            if self._ahead[key][0] > self._revision:
                return
            del self._ahead[key]

    def _known(self, key: str) -> _Known:
        entry = self.confirmed.get(key)
        return _ABSENT if entry is None else _Known(entry.large or entry.value, entry.revision)

    def _holds(self, key: str, value: bytes | None, headers: Headers) -> bool:
        """Whether the owner is known to have this value, with these headers if there are any."""
        if not _is_same(self._known(key).value, value):
            return False
        entry = self.confirmed.get(key)
        return not headers or (entry is not None and dict(entry.headers) == dict(headers))

    @staticmethod
    def _hold(entries: dict[str, Entry], key: str, entry: Entry | None) -> None:
        if entry is None:
            entries.pop(key, None)
        else:
            entries[key] = entry

    # Where both meet

    def _moved(self, key: str) -> None:
        """Handle that the owner's value of `key` may have changed."""
        unsaved = self._unsaved.get(key)
        if unsaved is None:
            self._show(key, Origin.REMOTE)
        elif unsaved.state is not _State.SENT:
            self._reconsider(key, unsaved)

    def _reconsider(self, key: str, unsaved: _Unsaved) -> None:
        """Rebase the unsent write on what the owner has now."""
        self._wait(key, unsaved)
        remote = self._known(key)
        if remote.revision == unsaved.base.revision:
            return
        base, unsaved.base = unsaved.base, remote
        unsure, unsaved.unsure = unsaved.unsure, None
        was_stored = unsure is not None and self._holds(key, *unsure)
        has_ttl = was_stored and unsaved.sent_ttl_seconds == unsaved.ttl_seconds
        if self._holds(key, unsaved.wanted, unsaved.headers) and (
            unsaved.ttl_seconds is None or has_ttl
        ):
            self._settle(key, Origin.REMOTE)
            return
        if was_stored:
            return  # the answer was lost but the write was stored; later writes are based on it
        if self._merge is local_wins:
            merged = unsaved.wanted
        elif isinstance(base.value, LargeValue) or isinstance(remote.value, LargeValue):
            error = LargeValueNotHeldError(what=f"the value of {key!r} that this was merged with")
            self.notices.reject(Rejection(key, unsaved.wanted, error))
            self._settle(key, Origin.REJECTED)
            return
        else:
            merged = self._merge(base.value, unsaved.wanted, remote.value)
        is_local = merged == unsaved.wanted and not unsaved.is_plain
        self._want(unsaved, merged)
        if _is_same(remote.value, merged) and not is_local:
            self._settle(key, Origin.REMOTE)
        else:
            self._show(key, Origin.REMOTE)

    def _want(self, unsaved: _Unsaved, value: bytes | None) -> None:
        self.unsaved_bytes += len(value or b"") - len(unsaved.wanted or b"")
        unsaved.wanted = value

    def _renumber(self, unsaved: _Unsaved) -> None:
        """Count only writes since the last send as unsaved."""
        unsaved.number, unsaved.next_number = unsaved.next_number, 0
        self._first_unsaved = None

    def _wait(self, key: str, unsaved: _Unsaved) -> None:
        unsaved.state = _State.WAITING
        self._conflicts.pop(key, None)
        self._waiting[key] = None

    def _settle(self, key: str, origin: Origin) -> None:
        """Note that nothing of `key` is unsaved any more."""
        unsaved = self._unsaved.pop(key)
        self._first_unsaved = None
        self.unsaved_bytes -= len(unsaved.wanted or b"")
        self._waiting.pop(key, None)
        self._conflicts.pop(key, None)
        self._show(key, origin)

    def _show(self, key: str, origin: Origin) -> None:
        """Show the current value to the application."""
        unsaved = self._unsaved.get(key)
        value = self._known(key).value if unsaved is None else unsaved.wanted
        previous = self.visible.get(key)
        if value == previous:
            return
        if value is None:
            del self.visible[key]
        else:
            self.visible[key] = value
        if isinstance(previous, bytes) and _is_same(value, previous):
            return  # an own large value is held no longer, now that it is stored
        self.notices.change(EntryChange(key, value, previous, origin))


def _is_same(held: Held | None, value: bytes | None) -> bool:
    """Whether what is held is this value, or stands for it."""
    if isinstance(held, LargeValue):
        return (
            value is not None
            and len(value) == held.size_bytes
            and hashlib.sha256(value).digest() == held.sha256
        )
    return held == value


def _apply(entries: dict[str, Entry], change: Change) -> None:
    """Apply a change to a state that is being read."""
    if change.entry is not None:
        entries[change.entry.key] = change.entry
    elif change.kind is ChangeKind.TRIM:
        entries.clear()
    else:
        for key in change.keys:
            entries.pop(key, None)

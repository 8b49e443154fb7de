"""What a store's pending changes mean, on top of a file that does not hold them yet: the state of
each message, key, msg_id and upload that they touch.

The memtable is derived from the changes alone, so it can be rebuilt at any time. It may keep
entries that the file holds by now: they agree with the file, and `shrink` bounds them. The puts of
an atomic batch can be taken back; trims and clears never belong to a batch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from holdfast.persist.history.pending_versions import PendingVersions, size_of
from holdfast.persist.store.change_sizes import entry_bytes_of, message_bytes_of
from holdfast.protocol import changes, frames
from holdfast.protocol.errors import RateLimitedError
from holdfast.protocol.limits import MAX_LOOKS
from holdfast.protocol.messages import LargeValue
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.history.history_rows import kept_of

#: How many messages and keys may stay beyond the pending ones. They spare a look in the file for
#: keys that are set again and again.
_MIN_KEPT: Final = 1024
#: Rebuilding takes 0.8 µs for each change that the file lacks: 16 ms after the checkpoint of a fast
#: writer's file. So it waits until all but an eighth of what is kept is in the file.
_WORTH_REBUILDING: Final = 8
_ABSENT: Final = object()
#: From so many new keys on, sorting all of them is faster than inserting each.
_SORTED_KEYS: Final = 64
_RETRY_SECONDS: Final = 0.1


class Upload(NamedTuple):
    """The state of a value that arrives in chunks. `is_placed` once a message or entry has it."""

    size_bytes: int
    crc32: int
    time: int
    is_placed: bool = False


class PendingSubjects:
    """The subjects of messages that pending changes set, and of those that they remove."""

    __slots__ = (
        "_before",
        "_journal",
        "_stored",
        "by_subject",
        "removed",
        "removed_of",
        "subject_of",
    )

    def __init__(self, stored: Callable[[int], str | None]) -> None:
        """`stored` returns the subject of a message of the file."""
        self._stored = stored
        self.subject_of: dict[int, str] = {}
        #: Ascending seqs.
        self.by_subject: dict[str, list[int]] = {}
        #: The subjects of the file's messages that changes remove one by one.
        self.removed: dict[int, str] = {}
        #: The same by subject, with the revision of the removal, the last removal last.
        self.removed_of: dict[str, dict[int, int]] = {}
        #: Of the running batch: `(was set, seq, subject)`, or a removal without the first.
        self._journal: list[tuple[bool | None, int, str]] | None = None
        #: While it is rebuilt: the `removed` and `removed_of` that it had.
        self._before: tuple[dict[int, str], dict[str, dict[int, int]]] = ({}, {})

    def set(self, seq: int, subject: str | None) -> None:
        """Note that message `seq` was set, and has this subject."""
        if subject is None or self.subject_of.get(seq) == subject:
            return
        self._put(seq, subject)
        if self._journal is not None:
            self._journal.append((True, seq, subject))

    def append(self, seqs: Sequence[int], subjects: Sequence[str]) -> None:
        """`set` for messages at new seqs, outside a batch."""
        assert self._journal is None
        self.subject_of.update(zip(seqs, subjects, strict=True))
        by_subject = self.by_subject
        for seq, subject in zip(seqs, subjects, strict=True):
            mine = by_subject.get(subject)
            if mine is None:
                by_subject[subject] = [seq]
            else:
                mine.append(seq)

    def remove(self, seq: int, subject: str, revision: int) -> None:
        """Note that the change with `revision` removed a message that had this subject."""
        if seq in self.subject_of:
            self._take(seq, subject)
            if self._journal is not None:
                self._journal.append((False, seq, subject))
        # It may be in the file too.
        self.removed[seq] = subject
        removed = self.removed_of.setdefault(subject, {})
        removed.pop(seq, None)
        removed[seq] = revision
        if self._journal is not None:
            self._journal.append((None, seq, subject))

    def remove_all(self, seqs: Mapping[int, str], revision: int) -> None:
        """`remove` for each seq, with its subject."""
        if self._journal is not None:
            for seq, subject in seqs.items():
                self.remove(seq, subject, revision)
            return
        subject_of, by_subject, removed_of = self.subject_of, self.by_subject, self.removed_of
        for seq, subject in seqs.items():
            if subject_of.pop(seq, None) is not None:
                mine = by_subject[subject]
                del mine[0 if mine[0] == seq else bisect_left(mine, seq)]
                if not mine:
                    del by_subject[subject]
            removed = removed_of.get(subject)
            if removed is None:
                removed_of[subject] = {seq: revision}
            else:
                removed.pop(seq, None)
                removed[seq] = revision
        self.removed.update(seqs)

    def removed_again(self, seq: int, revision: int) -> None:
        """`remove` while the memtable is rebuilt from changes: they name no subject."""
        subject = self.subject_of.get(seq)
        if subject is None and seq not in self.removed:
            removed, removed_of = self._before
            subject = removed.get(seq)
            if subject is None or removed_of[subject].get(seq) != revision:
                subject = self._stored(seq)
        if subject is not None:
            self.remove(seq, subject, revision)

    def trim(self, end_seq: int) -> None:
        """Note that the messages up to a seq were removed."""
        for seq in [seq for seq in self.subject_of if seq <= end_seq]:
            self._take(seq, self.subject_of[seq])
        for seq in [seq for seq in self.removed if seq <= end_seq]:
            self._forget(seq, self.removed[seq])

    def begin_batch(self) -> None:
        """Record from now on what changes."""
        self._journal = []

    def end_batch(self) -> None:
        """Keep what changed."""
        self._journal = None

    def undo_batch(self) -> None:
        """Take back what changed since `begin_batch`."""
        journal, self._journal = self._journal, None
        for was_set, seq, subject in reversed(journal or ()):
            if was_set is None:
                self._forget(seq, subject)
            elif was_set:
                self._take(seq, subject)
            else:
                self._put(seq, subject)

    def reset(self) -> None:
        """Forget everything: the file holds it all."""
        self.subject_of.clear()
        self.by_subject.clear()
        self.removed = {}
        self.removed_of = {}

    def begin_rebuilding(self) -> None:
        """Forget everything, but know until `end_rebuilding` what subject each removed message had:
        to ask the file for each costs as much as the rest of a rebuild."""
        self._before = self.removed, self.removed_of
        self.reset()

    def end_rebuilding(self) -> None:
        self._before = ({}, {})

    def _put(self, seq: int, subject: str) -> None:
        self.subject_of[seq] = subject
        seqs = self.by_subject.setdefault(subject, [])
        if not seqs or seqs[-1] < seq:
            seqs.append(seq)
        else:
            insort(seqs, seq)

    def _take(self, seq: int, subject: str) -> None:
        del self.subject_of[seq]
        seqs = self.by_subject[subject]
        del seqs[bisect_left(seqs, seq)]
        if not seqs:
            del self.by_subject[subject]

    def _forget(self, seq: int, subject: str) -> None:
        del self.removed[seq]
        seqs = self.removed_of[subject]
        del seqs[seq]
        if not seqs:
            del self.removed_of[subject]


class KeyOrder:
    """The keys of a memtable in their order, for operations on all keys with a prefix. It costs
    nothing until the first of them.

    What such an operation looks through takes from a number of looks, which a tick renews: one tick
    never looks at more, however many operations ask for it.
    """

    __slots__ = ("_entries", "_keys", "_known", "_looks_left", "_tick")

    def __init__(self, entries: dict[str, tuple[int, int] | None]) -> None:
        self._entries = entries
        #: In order; keys that an undone batch had set may be left in it.
        self._keys: list[str] = []
        #: So many of the entries, which keep the order in which they came, are in `_keys`.
        self._known = 0
        self._tick: object = None
        self._looks_left = MAX_LOOKS

    def in_tick(self, tick: object) -> KeyOrder:
        """Return itself for the operations of a tick, which is any object of its own."""
        if self._tick is not tick:
            self._tick = tick
            self._looks_left = MAX_LOOKS
        return self

    def look(self, count: int) -> None:
        """Take so many looks. Raises RateLimitedError if the tick has not got as many."""
        self._looks_left -= count
        if self._looks_left < 0:
            raise RateLimitedError(
                what="what a turn looks through for prefixes",
                limit=MAX_LOOKS,
                retry_after_seconds=_RETRY_SECONDS,
            )

    def with_prefix(self, prefix: str, after_key: str | None = None) -> list[str]:
        """Return the keys of the memtable that start with `prefix`, in order; after `after_key`, if
        it is given. It takes a look before it begins, so what is refused costs nothing, and one for
        each key. Raises what `look` raises."""
        self.look(1)
        self._catch_up()
        keys, entries = self._keys, self._entries
        at = bisect_left(keys, prefix)
        if after_key is not None:
            at = bisect_right(keys, after_key, at)
        found = []
        while at < len(keys) and keys[at].startswith(prefix):
            if keys[at] in entries:
                found.append(keys[at])
            at += 1
        self.look(len(found))
        return found

    def undone(self) -> None:
        """Note that the entries that came last may be gone."""
        self._known = min(self._known, len(self._entries))

    def forget(self) -> None:
        """Note that all entries are gone."""
        self._keys.clear()
        self._known = 0

    def _catch_up(self) -> None:
        count = len(self._entries) - self._known
        self._known += count
        if count > _SORTED_KEYS or len(self._keys) > 2 * len(self._entries) + _SORTED_KEYS:
            self._keys = sorted(self._entries)
            return
        for key in islice(reversed(self._entries), count):
            at = bisect_left(self._keys, key)
            if at == len(self._keys) or self._keys[at] != key:
                self._keys.insert(at, key)


class Memtable:
    """What is known without the file. None marks what was removed."""

    __slots__ = (
        "_limit",
        "_undo",
        "_versions_in_file",
        "cleared",
        "entries",
        "key_order",
        "messages",
        "msg_ids",
        "subjects",
        "trimmed_to",
        "uploads",
        "versions",
    )

    def __init__(
        self,
        subject_in_file: Callable[[int], str | None],
        versions_in_file: Callable[[bool], PendingVersions | None],
    ) -> None:
        """`subject_in_file` returns the subject of a message of the file. `versions_in_file`
        returns the history as the file has it; None if it has none, unless it is needed."""
        #: Sizes by seq.
        self.messages: dict[int, int | None] = {}
        #: `(revision, bytes)` by key.
        self.entries: dict[str, tuple[int, int] | None] = {}
        self.key_order = KeyOrder(self.entries)
        #: `(seq, revision, time)` by msg_id.
        self.msg_ids: dict[str, tuple[int, int, int]] = {}
        self.uploads: dict[bytes, Upload | None] = {}
        self.subjects = PendingSubjects(subject_in_file)
        #: The file's messages up to `trimmed_to` no longer count; with `cleared`, nor do its keys.
        self.trimmed_to = 0
        self.cleared = False
        self._versions_in_file = versions_in_file
        #: The history of a kv; None if it has none.
        self.versions = versions_in_file(False)
        self._limit = _MIN_KEPT
        self._undo: list[tuple[dict[Any, Any], Any, Any]] | None = None

    def put(self, part: dict[Any, Any], key: Any, state: Any) -> None:
        """Set `key` in one of the dictionaries, so that `undo_batch` can take it back."""
        if self._undo is not None:
            self._undo.append((part, key, part.get(key, _ABSENT)))
        part[key] = state

    def put_all(self, part: dict[Any, Any], states: dict[Any, Any]) -> None:
        """`put` for each key."""
        if self._undo is None:
            part.update(states)
            return
        for key, state in states.items():
            self.put(part, key, state)

    def place_upload(self, value: Any, time: int) -> None:
        """If a value that was set is a large one, note that its upload is placed."""
        if type(value) is not bytes:
            large = LargeValue(*value[:4])
            placed = Upload(large.size_bytes, large.crc32, time, is_placed=True)
            self.put(self.uploads, large.upload_id, placed)

    def end_value(
        self, key: str, *, is_set: bool, how: changes.Removal = changes.Removal.DELETED
    ) -> int:
        """Note that the value of a key of a kv with a history is replaced, or removed unless
        `is_set`. Call it before the key is put. Return the bytes that this frees."""
        versions = self.versions
        assert versions is not None, "it keeps a history"
        present = versions.present(key)
        if versions.kept and how is changes.Removal.DELETED:
            after, freed_bytes = versions.ended(key, present, is_set=is_set)
        else:
            after, freed_bytes = versions.of(key), 0 if present is None else present[1]
            if how is changes.Removal.EVICTED:
                after, freed_bytes = (), freed_bytes + size_of(after)
        self.put(versions.by_key, key, after)
        return freed_bytes

    def keep_versions(self, kept: int) -> None:
        """Note that `kept` values of each key are kept from now on; 0: no history."""
        if self.versions is None and kept:
            self.versions = self._versions_in_file(True)
        if self.versions is not None:
            self.versions.configure(kept)

    def trim(self, end_seq: int) -> None:
        """Remove the messages up to `end_seq`."""
        for seq in [seq for seq in self.messages if seq <= end_seq]:
            del self.messages[seq]
        self.subjects.trim(end_seq)
        self.trimmed_to = max(self.trimmed_to, end_seq)

    def clear(self) -> None:
        """Remove all keys."""
        if self.versions is not None:
            self.versions.clear(self.entries.items())
        self.entries.clear()
        self.key_order.forget()
        self.cleared = True

    @property
    def in_batch(self) -> bool:
        return self._undo is not None

    def begin_batch(self) -> None:
        """Record from now on what `put` replaces."""
        self._undo = []
        self.subjects.begin_batch()

    def end_batch(self) -> None:
        """Keep what the batch did."""
        self._undo = None
        self.subjects.end_batch()

    def undo_batch(self) -> None:
        """Take back every `put` since `begin_batch`."""
        assert self._undo is not None
        for part, key, old in reversed(self._undo):
            if old is _ABSENT:
                part.pop(key, None)
            else:
                part[key] = old
        self._undo = None
        self.key_order.undone()
        self.subjects.undo_batch()

    def reset(self) -> None:
        """Forget everything: the file holds it all."""
        self.messages.clear()
        self.entries.clear()
        self.key_order.forget()
        self.msg_ids.clear()
        self.uploads.clear()
        self.subjects.reset()
        self.trimmed_to = 0
        self.cleared = False
        self.versions = self._versions_in_file(False)

    def rebuild(self, unwritten: Iterable[AppliedBatch]) -> None:
        """Derive the memtable again from the changes that the file lacks."""
        self.subjects.begin_rebuilding()
        self.reset()
        for batch in unwritten:
            revision = batch.previous_revision
            for change in batch.changes:
                revision += 1
                self._take(change, revision, batch.time)
        self.subjects.end_rebuilding()

    def shrink(
        self, unwritten: Callable[[], Iterable[AppliedBatch]], unwritten_count: int = 0
    ) -> None:
        """Drop entries that the file holds by now, where they would mislead or take
        too much memory. `unwritten_count` is the number of changes that the file lacks."""
        if any(upload is None or upload.is_placed for upload in self.uploads.values()):
            # A value can be removed without a change that names its upload. Only the
            # file knows then.
            self.uploads.clear()
            for batch in unwritten():
                for change in batch.changes:
                    self._take_upload(change, batch.time)
        is_stale = self.versions is not None and self.versions.is_stale
        size = len(self.messages) + len(self.entries)
        is_large = size > self._limit and size >= _WORTH_REBUILDING * unwritten_count
        if is_stale or is_large:
            self.rebuild(unwritten())
            self._limit = 2 * (len(self.messages) + len(self.entries)) + _MIN_KEPT

    def _take(self, change: frames.WireChange, revision: int, time: int) -> None:
        number = changes.number_of(change)
        self._take_upload(change, time)
        if number == changes.CHANGE_SET_MESSAGE:
            said = changes.message_set(change)
            self.messages[said.seq] = message_bytes_of(change)
            self.subjects.set(said.seq, said.subject)
            if said.msg_id is not None:
                written = time if said.time is None else said.time
                self.msg_ids[said.msg_id] = (said.seq, revision, written)
        elif number == changes.CHANGE_DELETE_MESSAGES:
            for seq in changes.deleted(change):
                self.messages[seq] = None
                self.subjects.removed_again(seq, revision)
        elif number == changes.CHANGE_TRIM:
            self.trim(changes.trimmed_to(change))
        elif number == changes.CHANGE_SET_ENTRY:
            key = changes.set_key(change)
            if self.versions is not None:
                self.end_value(key, is_set=True)
            self.entries[key] = (revision, entry_bytes_of(change))
        elif number == changes.CHANGE_DELETE_ENTRIES:
            removed = changes.entries_removed(change)
            for key in removed.keys:
                if self.versions is not None:
                    self.end_value(key, is_set=False, how=removed.how)
                self.entries[key] = None
            if self.versions is not None:
                self.versions.drop(removed.versions)
        elif number == changes.CHANGE_CONFIGURE:
            self.keep_versions(kept_of(changes.configured(change)))
        elif number == changes.CHANGE_CLEAR:
            self.clear()

    def _take_upload(self, change: frames.WireChange, time: int) -> None:
        number = changes.number_of(change)
        if number == changes.CHANGE_PUT_CHUNK:
            chunk = changes.chunk(change)
            self.uploads[chunk.upload_id] = Upload(chunk.end, chunk.crc32, time)
        elif number == changes.CHANGE_DROP_UPLOADS:
            self.uploads.update(dict.fromkeys(changes.dropped_uploads(change)))
        elif number in changes.SETS and (large := changes.large_value(change)) is not None:
            placed = Upload(large.size_bytes, large.crc32, time, is_placed=True)
            self.uploads[large.upload_id] = placed

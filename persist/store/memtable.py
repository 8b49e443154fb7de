"""What a store's pending changes mean, on top of a file that does not hold them yet: the state of
each message, key, msg_id and upload that they touch.

The memtable is derived from the changes alone, so it can be rebuilt at any time. It may keep
entries that the file holds by now: they agree with the file, and `shrink` bounds them. The puts of
an atomic batch can be taken back; trims and clears never belong to a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from holdfast.persist.store.change_sizes import entry_bytes_of, message_bytes_of
from holdfast.protocol import changes, frames
from holdfast.protocol.messages import LargeValue
from holdfast.shared_fs.store_file.applying import AppliedBatch

#: How many messages and keys may stay beyond the pending ones. They spare a look in the file for
#: keys that are set again and again.
_MIN_KEPT: Final = 1024
_ABSENT: Final = object()


class Upload(NamedTuple):
    """The state of a value that arrives in chunks. `is_placed` once a message or entry has it."""

    size_bytes: int
    crc32: int
    time: int
    is_placed: bool = False


class Memtable:
    """What is known without the file. None marks what was removed."""

    def __init__(self) -> None:
        #: Sizes by seq.
        self.messages: dict[int, int | None] = {}
        #: `(revision, bytes)` by key.
        self.entries: dict[str, tuple[int, int] | None] = {}
        #: `(seq, revision, time)` by msg_id.
        self.msg_ids: dict[str, tuple[int, int, int]] = {}
        self.uploads: dict[bytes, Upload | None] = {}
        #: The file's messages up to `trimmed_to` no longer count; with `cleared`, nor do its keys.
        self.trimmed_to = 0
        self.cleared = False
        self._limit = _MIN_KEPT
        self._undo: list[tuple[dict[Any, Any], Any, Any]] | None = None

    def put(self, part: dict[Any, Any], key: Any, state: Any) -> None:
        """Set `key` in one of the dictionaries, so that `undo_batch` can take it back."""
        if self._undo is not None:
            self._undo.append((part, key, part.get(key, _ABSENT)))
        part[key] = state

    def place_upload(self, value: Any, time: int) -> None:
        """If a value that was set is a large one, note that its upload is placed."""
        if type(value) is not bytes:
            large = LargeValue(*value[:4])
            placed = Upload(large.size_bytes, large.crc32, time, is_placed=True)
            self.put(self.uploads, large.upload_id, placed)

    def trim(self, end_seq: int) -> None:
        """Remove the messages up to `end_seq`."""
        for seq in [seq for seq in self.messages if seq <= end_seq]:
            del self.messages[seq]
        self.trimmed_to = max(self.trimmed_to, end_seq)

    def clear(self) -> None:
        """Remove all keys."""
        self.entries.clear()
        self.cleared = True

    @property
    def in_batch(self) -> bool:
        return self._undo is not None

    def begin_batch(self) -> None:
        """Record from now on what `put` replaces."""
        self._undo = []

    def end_batch(self) -> None:
        """Keep what the batch did."""
        self._undo = None

    def undo_batch(self) -> None:
        """Take back every `put` since `begin_batch`."""
        assert self._undo is not None
        for part, key, old in reversed(self._undo):
            if old is _ABSENT:
                part.pop(key, None)
            else:
                part[key] = old
        self._undo = None

    def reset(self) -> None:
        """Forget everything: the file holds it all."""
        self.messages.clear()
        self.entries.clear()
        self.msg_ids.clear()
        self.uploads.clear()
        self.trimmed_to = 0
        self.cleared = False

    def rebuild(self, unwritten: Iterable[AppliedBatch]) -> None:
        """Derive the memtable again from the changes that the file lacks."""
        self.reset()
        for batch in unwritten:
            revision = batch.previous_revision
            for change in batch.changes:
                revision += 1
                self._take(change, revision, batch.time)

    def shrink(self, unwritten: Callable[[], Iterable[AppliedBatch]]) -> None:
        """Drop entries that the file holds by now, where they would mislead or take
        too much memory."""
        if any(upload is None or upload.is_placed for upload in self.uploads.values()):
            # A value can be removed without a change that names its upload. Only the
            # file knows then.
            self.uploads.clear()
            for batch in unwritten():
                for change in batch.changes:
                    self._take_upload(change, batch.time)
        if len(self.messages) + len(self.entries) > self._limit:
            self.rebuild(unwritten())
            self._limit = 2 * (len(self.messages) + len(self.entries)) + _MIN_KEPT

    def _take(self, change: frames.WireChange, revision: int, time: int) -> None:
        number = changes.number_of(change)
        self._take_upload(change, time)
        if number == changes.CHANGE_SET_MESSAGE:
            seq, _, _, msg_id, _ = changes.message_set(change)
            self.messages[seq] = message_bytes_of(change)
            if msg_id is not None:
                self.msg_ids[msg_id] = (seq, revision, time)
        elif number == changes.CHANGE_DELETE_MESSAGES:
            for seq in changes.deleted(change):
                self.messages[seq] = None
        elif number == changes.CHANGE_TRIM:
            self.trim(changes.trimmed_to(change))
        elif number == changes.CHANGE_SET_ENTRY:
            self.entries[changes.set_key(change)] = (revision, entry_bytes_of(change))
        elif number == changes.CHANGE_DELETE_ENTRIES:
            for key in changes.deleted(change):
                self.entries[key] = None
        elif number == changes.CHANGE_CLEAR:
            self.clear()

    def _take_upload(self, change: frames.WireChange, time: int) -> None:
        number = changes.number_of(change)
        if number == changes.CHANGE_PUT_CHUNK:
            upload_id, offset, data, crc32 = changes.chunk(change)
            self.uploads[upload_id] = Upload(offset + len(data or b""), crc32, time)
        elif number == changes.CHANGE_DROP_UPLOADS:
            self.uploads.update(dict.fromkeys(changes.dropped_uploads(change)))
        elif number in changes.SETS and (large := changes.large_value(change)) is not None:
            placed = Upload(large.size_bytes, large.crc32, time, is_placed=True)
            self.uploads[large.upload_id] = placed

"""The difference that changes make which a store's file does not hold yet: for each message, key,
msg_id and upload that they touch, what the file would have to answer.

Derived from the changes alone, so it can be built anew at any time. Of changes that the file has by
now it may still say the same as the file: only it must not grow (`shrink`). What an atomic batch
has put can be taken back; trims and clears are no part of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from holdfast.persist.store.change_sizes import entry_bytes_of, message_bytes_of
from holdfast.protocol import changes, frames
from holdfast.protocol.messages import LargeValue
from holdfast.shared_fs.store_file.applying import AppliedBatch

#: So many messages and keys more than what is pending may be kept: of the keys that are set again
#: and again the file need not be asked.
_MIN_KEPT: Final = 1024
_ABSENT: Final = object()


class Upload(NamedTuple):
    """What there is of a value that comes in chunks; `is_placed` once a message or entry has it."""

    size_bytes: int
    crc32: int
    time: int
    is_placed: bool = False


class Memtable:
    """What is known without the file. None stands for what is gone."""

    def __init__(self) -> None:
        #: Sizes by seq.
        self.messages: dict[int, int | None] = {}
        #: `(revision, bytes)` by key.
        self.entries: dict[str, tuple[int, int] | None] = {}
        #: `(seq, revision, time)` by msg_id.
        self.msg_ids: dict[str, tuple[int, int, int]] = {}
        self.uploads: dict[bytes, Upload | None] = {}
        #: Of the messages up to it, and with `cleared` of the keys, the file's do not count.
        self.trimmed_to = 0
        self.cleared = False
        self._limit = _MIN_KEPT
        self._undo: list[tuple[dict[Any, Any], Any, Any]] | None = None

    def put(self, part: dict[Any, Any], key: Any, state: Any) -> None:
        """Set `key` in one of the parts so that `undo_batch` takes it back."""
        if self._undo is not None:
            self._undo.append((part, key, part.get(key, _ABSENT)))
        part[key] = state

    def place_upload(self, value: Any, time: int) -> None:
        """Note whose upload a value that was set is, if it is a large one."""
        if type(value) is not bytes:
            large = LargeValue(*value[:4])
            placed = Upload(large.size_bytes, large.crc32, time, is_placed=True)
            self.put(self.uploads, large.upload_id, placed)

    def trim(self, end_seq: int) -> None:
        """The messages up to `end_seq` are gone."""
        for seq in [seq for seq in self.messages if seq <= end_seq]:
            del self.messages[seq]
        self.trimmed_to = max(self.trimmed_to, end_seq)

    def clear(self) -> None:
        """All keys are gone."""
        self.entries.clear()
        self.cleared = True

    @property
    def in_batch(self) -> bool:
        return self._undo is not None

    def begin_batch(self) -> None:
        """Remember from here on what `put` replaces."""
        self._undo = []

    def end_batch(self) -> None:
        """The batch holds."""
        self._undo = None

    def undo_batch(self) -> None:
        """Take back what was put since `begin_batch`."""
        assert self._undo is not None
        for part, key, old in reversed(self._undo):
            if old is _ABSENT:
                part.pop(key, None)
            else:
                part[key] = old
        self._undo = None

    def reset(self) -> None:
        """The file holds everything."""
        self.messages.clear()
        self.entries.clear()
        self.msg_ids.clear()
        self.uploads.clear()
        self.trimmed_to = 0
        self.cleared = False

    def rebuild(self, unwritten: Iterable[AppliedBatch]) -> None:
        """Derive it anew from the changes that the file does not hold."""
        self.reset()
        for batch in unwritten:
            revision = batch.previous_revision
            for change in batch.changes:
                revision += 1
                self._take(change, revision, batch.time)

    def shrink(self, unwritten: Callable[[], Iterable[AppliedBatch]]) -> None:
        """Let go, now that the file holds more, of what would make it grow or mislead."""
        if any(upload is None or upload.is_placed for upload in self.uploads.values()):
            # A value may go without a word of whose upload it was: the file knows.
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
        if number == frames.CHANGE_SET_MESSAGE:
            seq, _, _, msg_id, _ = changes.message_set(change)
            self.messages[seq] = message_bytes_of(change)
            if msg_id is not None:
                self.msg_ids[msg_id] = (seq, revision, time)
        elif number == frames.CHANGE_DELETE_MESSAGES:
            for seq in changes.deleted(change):
                self.messages[seq] = None
        elif number == frames.CHANGE_TRIM:
            self.trim(changes.trimmed_to(change))
        elif number == frames.CHANGE_SET_ENTRY:
            self.entries[changes.set_key(change)] = (revision, entry_bytes_of(change))
        elif number == frames.CHANGE_DELETE_ENTRIES:
            for key in changes.deleted(change):
                self.entries[key] = None
        elif number == frames.CHANGE_CLEAR:
            self.clear()

    def _take_upload(self, change: frames.WireChange, time: int) -> None:
        number = changes.number_of(change)
        if number == frames.CHANGE_PUT_CHUNK:
            upload_id, offset, data, crc32 = changes.chunk(change)
            self.uploads[upload_id] = Upload(offset + len(data or b""), crc32, time)
        elif number == frames.CHANGE_DROP_UPLOADS:
            self.uploads.update(dict.fromkeys(changes.dropped_uploads(change)))
        elif number in changes.SETS and (large := changes.large_value(change)) is not None:
            placed = Upload(large.size_bytes, large.crc32, time, is_placed=True)
            self.uploads[large.upload_id] = placed

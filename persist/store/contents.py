"""What an open store holds: its file, and on top of it the changes that the file lacks.

Each question is answered as of the last accepted change: by the memtable if it knows, else by the
file. All I/O goes through the file. Where the changes themselves must be scanned, the caller passes
them as `unwritten` batches.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from holdfast.persist.history.pending_versions import PendingVersions
from holdfast.persist.store.memtable import Memtable, Upload
from holdfast.persist.store.pending import PendingTick, contents_of
from holdfast.persist.store.subjects import MessageSubjects
from holdfast.protocol import changes, frames
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.limits import KIB
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.encryption.store_cipher import StoreCipher
from holdfast.shared_fs.store_file.applying import AppliedBatch, WriterOutcome
from holdfast.shared_fs.store_file.pages.page_sizes import page_bytes_for
from holdfast.shared_fs.store_file.store_file import StoreFile

logger = logging.getLogger("holdfast.persist")

#: A new file with at most this much content is written whole: the loop can afford to
#: build its image.
_SMALL_FILE_BYTES = 16 * KIB
#: Returns a function that writes a new file with these changes and outcomes, whole and sealed, in
#: any thread. Returns None if the file must be created the ordinary way.
PrepareFile = Callable[
    [Sequence[AppliedBatch], Sequence[WriterOutcome]], Callable[[], StoreFile] | None
]


class Contents:
    """One store's file, and the memtable on top of it. `file` is None until the first change of a
    new store reaches the disk."""

    __slots__ = (
        "__weakref__",
        "_create_file",
        "_is_exact",
        "_prepare_file",
        "cipher",
        "file",
        "memtable",
        "subjects",
    )

    def __init__(
        self,
        file: StoreFile | None,
        create_file: Callable[[int], StoreFile],
        prepare_file: PrepareFile | None,
    ) -> None:
        """`create_file` creates an empty file with pages of the given size."""
        self.file = file
        # Weak, so that a closed store goes at once: see `protocol/serving/garbage.py`.
        mine = weakref.proxy(self)
        self.memtable = Memtable(partial(_subject_in_file, mine), partial(_versions_in_file, mine))
        self.subjects = MessageSubjects(self.memtable, partial(_file_of, mine))
        #: Decrypts values and headers. None: there is nothing to decrypt.
        self.cipher: StoreCipher | None = None
        self._create_file = create_file
        self._prepare_file = prepare_file
        #: True if the memtable repeats nothing that the file already holds.
        self._is_exact = False

    def message_bytes(self, seq: int) -> int | None:
        """Return the size of message `seq`, or None if there is no such message."""
        if seq in self.memtable.messages:
            return self.memtable.messages[seq]
        if self.file is None or seq <= self.memtable.trimmed_to or seq > self.file.meta.last_seq:
            return None
        return self.file.message_bytes(seq)

    def sizes_of(self, seqs: Sequence[int]) -> dict[int, int]:
        """Return the size of each of these messages that exists."""
        memtable = self.memtable.messages
        found = {seq: size for seq in seqs if (size := memtable.get(seq)) is not None}
        if self.file is not None:
            trimmed_to = self.memtable.trimmed_to
            stored = [seq for seq in seqs if seq not in memtable and seq > trimmed_to]
            if stored:
                found.update(self.file.bytes_of(stored))
        return found

    def message_revision(self, seq: int, unwritten: Iterable[AppliedBatch]) -> int:
        """Return the revision of message `seq`, or 0 if there is no such message.

        The memtable does not keep revisions of messages, so this scans the unwritten changes.
        """
        if self.message_bytes(seq) is None:
            return 0
        found = 0
        for batch in unwritten:
            for revision, change in enumerate(batch.changes, batch.previous_revision + 1):
                is_set = changes.number_of(change) == changes.CHANGE_SET_MESSAGE
                if is_set and changes.set_key(change) == seq:
                    found = revision
        if found or self.file is None:
            return found
        row = self.file.message(seq)
        assert row is not None
        return int(row[1])

    def message_value(self, seq: int, unwritten: Iterable[AppliedBatch]) -> Any:
        """Return the value of a message as a change has it; None if it does not exist."""
        if self.message_bytes(seq) is None:
            return None
        found = None
        for change in self._sets_of({seq}, unwritten):
            found = changes.set_value(change)
        if found is None and self.file is not None:
            row = self.readable(self.file).message(seq)
            found = None if row is None else row[3]
        return found

    def headers_of(self, seqs: Iterable[int], unwritten: Iterable[AppliedBatch]) -> dict[int, Any]:
        """Return the headers of messages that exist, as changes have them."""
        wanted = set(seqs)
        if not wanted:
            return {}
        found = {} if self.file is None else self.readable(self.file).headers_of(wanted)
        for change in self._sets_of(wanted, unwritten):
            said = changes.message_set(change)
            found[said.seq] = said.headers
        return found

    def readable(self, file: StoreFile) -> StoreFile:
        """Return the store's file, so that it gives out values and headers as they were sent."""
        file.encryption.cipher = self.cipher
        return file

    def _sets_of(
        self, seqs: set[int], unwritten: Iterable[AppliedBatch]
    ) -> Iterator[frames.WireChange]:
        """Yield the changes that set one of these messages, in order."""
        for batch in unwritten:
            for revision, change in enumerate(batch.changes, batch.previous_revision + 1):
                if (
                    changes.number_of(change) == changes.CHANGE_SET_MESSAGE
                    and changes.set_key(change) in seqs
                ):
                    yield change if self.cipher is None else self.cipher.decrypted(change, revision)

    def seqs_from(self, start_seq: int, last_seq: int, limit: int) -> list[int]:
        """Return the seqs of up to `limit` messages from `start_seq` on, in a stream whose last
        seq is `last_seq`."""
        memtable, file_last_seq = self.memtable.messages, 0
        found: list[int] = []
        if self.file is not None and start_seq <= self.file.meta.last_seq:
            file_last_seq = self.file.meta.last_seq
            at = max(start_seq, self.memtable.trimmed_to + 1)
            while at <= file_last_seq and len(found) < limit:
                page = self.file.seqs_from(at, limit)
                found += [seq for seq in page if memtable.get(seq, 0) is not None]
                at = page[-1] + 1 if len(page) == limit else file_last_seq + 1
            end_seq = found[limit - 1] if len(found) >= limit else file_last_seq
            # Messages that were set again. Scan whichever is shorter: the memtable or the range.
            touched = (
                [seq for seq in memtable if start_seq <= seq <= end_seq]
                if len(memtable) <= end_seq - start_seq
                else range(start_seq, end_seq + 1)
            )
            found = sorted({seq for seq in touched if memtable.get(seq) is not None}.union(found))
        for seq in range(max(start_seq, file_last_seq + 1), last_seq + 1):
            if len(found) >= limit:
                break
            if memtable.get(seq) is not None:
                found.append(seq)
        return found[:limit]

    def entry_state(self, key: str) -> tuple[int, int] | None:
        """Return `(revision, bytes)` of `key`, or None."""
        entries = self.memtable.entries
        if key in entries:
            return entries[key]
        if self.file is None or self.memtable.cleared:
            return None
        return self.file.entry_state(key)

    def msg_id(self, msg_id: str) -> tuple[int, int, int] | None:
        """Return `(seq, revision, time)` of the message that carried `msg_id`, if remembered."""
        found = self.memtable.msg_ids.get(msg_id)
        if found is None and self.file is not None:
            return self.file.msg_id(msg_id)
        return found

    def upload(self, upload_id: bytes) -> Upload | None:
        """Return the state of an upload, or None if there is no such upload."""
        if upload_id in self.memtable.uploads:
            return self.memtable.uploads[upload_id]
        body = self.file.body(upload_id) if self.file is not None else None
        if body is None:
            return None
        return Upload(body.size_bytes, body.crc32, body.time, body.place is not None)

    def staged(self) -> dict[bytes, int]:
        """Return the unfinished uploads, each with the time of its last chunk."""
        found = dict(self.file.staged_bodies()) if self.file is not None else {}
        for upload_id, upload in self.memtable.uploads.items():
            if upload is None or upload.is_placed:
                found.pop(upload_id, None)
            else:
                found[upload_id] = upload.time
        return found

    def sum_up_to(self, end_seq: int, unwritten: Iterable[AppliedBatch]) -> tuple[int, int]:
        """Return how many messages there are up to `end_seq`, which is below the last seq,
        and their bytes."""
        if not self._is_exact:
            # Each message in the memtable costs a look-up below, so drop those that the file holds.
            self.memtable.rebuild(unwritten)
            self._is_exact = True
        messages, start_seq = self.memtable.messages, self.memtable.trimmed_to + 1
        count = size_bytes = 0
        if self.file is not None and end_seq >= start_seq:
            count, size_bytes = _sum_in_file(self.file, start_seq, end_seq)
        # Scan whichever is shorter. Trimmed messages may have been set again.
        seqs: Iterable[int] = messages if end_seq > len(messages) else range(1, end_seq + 1)
        for seq in seqs:
            if seq > end_seq or seq not in messages:
                continue
            new = messages[seq]
            if self.file is not None and seq > self.memtable.trimmed_to:
                old = self.file.message_bytes(seq)
                if old is not None:
                    count -= 1
                    size_bytes -= old
            if new is not None:
                count += 1
                size_bytes += new
        return count, size_bytes

    @property
    def bytes_in_file(self) -> int:
        """The bytes that the file counts."""
        return 0 if self.file is None else self.file.meta.bytes

    def prepare(self, store: StoreId, ready: list[PendingTick]) -> Callable[[], StoreFile] | None:
        """Return a function that writes a new store's file, whole, with all that is
        `ready` and without a WAL. Return None if there is a file already, or it must be
        created the ordinary way."""
        size_bytes = sum(pending.size_bytes for pending in ready)
        if self._prepare_file is None or self.file is not None or size_bytes > _SMALL_FILE_BYTES:
            return None
        try:
            return self._prepare_file(*contents_of(ready))
        except HoldfastError:
            raise
        except Exception as error:  # noqa: BLE001 (applying reports it)
            # The fault concerns this store alone. Applying the changes one by one will
            # report what it is.
            logger.error("store.not_whole store=%s reason=%r", store, error)
            return None

    def apply(self, ready: list[PendingTick]) -> None:
        """Apply what is `ready` to the file, creating the file if there is none. If it raises
        StorageFailedError or StoreDamagedError, nothing was applied."""
        contents = contents_of(ready)
        if self.file is None:
            self.file = self._create_file(page_bytes_for(contents[0]))
        self.file.apply(*contents, size_bytes=sum([pending.size_bytes for pending in ready]))

    def applied(
        self, unwritten: Callable[[], Iterable[AppliedBatch]], unwritten_count: int
    ) -> None:
        """Note that the file holds more than before, and still lacks `unwritten`, of so many
        changes."""
        self._is_exact = False
        self.memtable.shrink(unwritten, unwritten_count)

    def end_memory(self) -> None:
        """Give back the memory of a file in memory now. The collector would find its connection,
        which is part of a cycle, hours later."""
        file, self.file = self.file, None
        if file is not None:
            file.abandon()

    @contextlib.contextmanager
    def previewed(self, batches: list[AppliedBatch]) -> Iterator[None]:
        """Let the body read `file` as if these batches were applied, even while the disk
        takes no writes.

        Raises StorageFailedError when there is no file yet and none can be made.
        """
        if self.file is None:
            self.file = self._create_file(page_bytes_for(batches))
        with self.file.preview([batch for batch in batches if batch.changes]):
            yield


def _file_of(contents: Contents) -> StoreFile | None:
    return contents.file


def _subject_in_file(contents: Contents, seq: int) -> str | None:
    return None if contents.file is None else contents.file.subjects.subject_of(seq)


def _versions_in_file(contents: Contents, is_needed: bool) -> PendingVersions | None:
    if not is_needed and (contents.file is None or not contents.file.history.exists):
        return None
    return PendingVersions(contents.file, lambda key: contents.entry_state(key))


def _sum_in_file(file: StoreFile, start_seq: int, end_seq: int) -> tuple[int, int]:
    """Return the count and bytes of the file's messages in a range, by counting
    the shorter side."""
    last_seq = file.meta.last_seq
    if last_seq - end_seq < end_seq - start_seq and file.first_seq() >= start_seq:
        count, size_bytes = file.sum_messages(end_seq + 1, last_seq)
        return file.meta.count - count, file.meta.bytes - size_bytes
    return file.sum_messages(start_seq, end_seq)

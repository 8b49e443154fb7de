"""The changes of unfinished uploads: values that arrive in chunks."""

from __future__ import annotations

from holdfast.persist.store.accepting.running_tick import RunningTick, first_due, gives_up_at
from holdfast.persist.store.change_sizes import variable_bytes
from holdfast.persist.store.memtable import Upload
from holdfast.persist.store.retention import NEVER
from holdfast.protocol import changes as rows
from holdfast.protocol import frames


class UploadChanges(RunningTick):
    """Accepts changes of uploads."""

    __slots__ = ()

    @property
    def held_bytes(self) -> int:
        """The bytes of the content and of unfinished uploads. Asks the file, if there are any."""
        if self.uploads_due_at == NEVER:
            return self.bytes
        uploads = map(self.contents.upload, self.contents.staged())
        return self.bytes + sum(upload.size_bytes for upload in uploads if upload is not None)

    def put_chunk(self, upload_id: bytes, offset: int, data: bytes, crc32: int) -> None:
        """Accept the next chunk of an upload, or the first of a new one. `crc32` covers the
        whole upload so far."""
        change: frames.WireChange = [rows.CHANGE_PUT_CHUNK, upload_id, offset, data, crc32]
        if self.cipher is not None:
            change = self.cipher.encrypted(change, self.revision + 1)
        self._accept(change, variable_bytes(change))
        upload = Upload(offset + len(data), crc32, self.time)
        self._memtable.put(self._memtable.uploads, upload_id, upload)
        self.has_chunks = True
        if self.uploads_due_at == NEVER:
            self._tell_of_expiry()
        self.uploads_due_at = min(self.uploads_due_at, gives_up_at(self.time))

    def drop_uploads(self, upload_ids: list[bytes]) -> None:
        """Accept the removal of uploads. All of them exist, and no message or entry has
        one as its value."""
        change = [rows.CHANGE_DROP_UPLOADS, upload_ids]
        self._accept(change, variable_bytes(change))
        for upload_id in upload_ids:
            self._memtable.put(self._memtable.uploads, upload_id, None)

    def given_up(self, now: int) -> list[bytes]:
        """Return the uploads that were abandoned, and note when to look again."""
        staged = self.contents.staged()
        gone = [each for each, time in staged.items() if gives_up_at(time) <= now]
        self.uploads_due_at = first_due(
            [(each, time) for each, time in staged.items() if each not in gone]
        )
        return gone

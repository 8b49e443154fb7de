"""The messages of a stream, and what is kept of each: sizes, headers, msg_ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

from holdfast.protocol.header_block import FIRST_BYTE, msg_id_in
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.applying import unpack_headers
from holdfast.shared_fs.store_file.archived_blocks import (
    ArchivedMessage,
    ArchiveDraft,
    ArchivePlace,
)
from holdfast.shared_fs.store_file.reading.file_rows import LARGEST_SEQ, FileRows
from holdfast.shared_fs.store_file.row_pages import Row, RowPage, mixed_page_of, page_of
from holdfast.shared_fs.store_file.sqlite_connection import integers, raises_ours
from holdfast.shared_fs.store_file.subject_schema import SELECT_MESSAGES_OF


class MessageRows(FileRows):
    """Reads messages by their seqs."""

    @raises_ours
    def message(self, seq: int) -> Row | None:
        """Return `(seq, revision, time, value, headers)` with headers packed, or None.

        In all returned rows, the value of an archived message is an ArchivedMessage, and that of a
        large one is `[upload_id, size_bytes, sha256, crc32]`.
        """
        found: Row | None = self._execute_variant(schema.SELECT_MESSAGE, (seq,)).get
        if found is None and self._archived.exists:
            archived = self._archived.find(seq)
            return archived.row if archived is not None else None
        return None if found is None else self._resolved(found)

    @raises_ours
    def message_bytes(self, seq: int) -> int | None:
        """Return the size of a message; None if it does not exist."""
        found: int | None = self._execute_variant(schema.SELECT_MESSAGE_BYTES, (seq,)).get
        if found is None and self._archived.exists:
            archived = self._archived.find(seq)
            return archived.size_bytes if archived is not None else None
        return found

    @raises_ours
    def bytes_of(self, seqs: Sequence[int]) -> dict[int, int]:
        """Return the size of each of these messages that exists."""
        wanted = integers(seqs)
        rows: Any = self._execute_variant(schema.SELECT_BYTES_OF_MANY, (wanted,))
        found: dict[int, int] = dict(rows)
        if self._archived.exists:
            for seq in seqs:
                if seq not in found and (archived := self._archived.find(seq)) is not None:
                    found[seq] = archived.size_bytes
        return found

    @raises_ours
    def sum_messages(self, start_seq: int, end_seq: int) -> tuple[int, int]:
        """Return the number of messages in a range, and their bytes."""
        count, size_bytes = self._execute_variant(schema.SUM_MESSAGES, (start_seq, end_seq)).get
        if self._archived.exists:
            archived_count, archived_bytes = self._archived.sum(start_seq, end_seq)
            return count + archived_count, size_bytes + archived_bytes
        return count, size_bytes

    def messages(self, start_seq: int, end_seq: int | None, limit: int) -> Iterator[Row]:
        """Yield rows as `message` does, by seq, both ends inclusive."""
        end = LARGEST_SEQ if end_seq is None else end_seq
        rows = self._large_in(self._rows(schema.SELECT_MESSAGES, (start_seq, end, limit)))
        if self._archived_from(start_seq):
            return islice(self._with_archived(rows, start_seq, end), limit)
        return rows

    def message_page(
        self,
        start_seq: int,
        end_seq: int | None,
        *,
        max_rows: int,
        max_bytes: int,
        row_bytes: int = 0,
    ) -> RowPage:
        """Return the messages from `start_seq` on that fit in one
        page, at least one if there is any.

        Each counts `row_bytes` beside its value and packed headers.
        """
        end = LARGEST_SEQ if end_seq is None else end_seq
        # One row more, to see whether more follow.
        rows = self._rows(schema.SELECT_MESSAGES, (start_seq, end, max_rows + 1))
        if self._archived_from(start_seq):
            merged = self._with_archived(chain.from_iterable(rows), start_seq, end)
            return self._with_large(mixed_page_of(merged, max_rows, max_bytes, row_bytes))
        return self._with_large(page_of(rows, max_rows, max_bytes, row_bytes))

    @raises_ours
    def archived_page(
        self, start_seq: int, before_seq: int | None, *, max_rows: int, max_bytes: int
    ) -> tuple[list[ArchivedMessage], bool]:
        """Return the archived messages from `start_seq` on and before another seq that fit in one
        page, at least one if there is any, and whether there are more."""
        end_seq = LARGEST_SEQ if before_seq is None else before_seq - 1
        found: list[ArchivedMessage] = []
        size_bytes = 0
        for message in self._archived.messages(start_seq, end_seq):
            size_bytes += message.size_bytes
            if found and (size_bytes > max_bytes or len(found) == max_rows):
                return found, True
            found.append(message)
        return found, False

    def page_of_seqs(
        self,
        seqs: list[int],
        *,
        max_bytes: int,
        row_bytes: int,
        is_late: Callable[[], bool] = lambda: False,
    ) -> RowPage:
        """Return messages that the stream has and that have subjects, by their seqs, as many as fit
        in one page, or were read before it was late."""
        if not seqs:
            return RowPage([], 0, more=False)
        rows = self._rows(SELECT_MESSAGES_OF, (integers(seqs),))
        return self._with_large(page_of(rows, len(seqs), max_bytes, row_bytes, is_late))

    @raises_ours
    def msg_id(self, msg_id: str) -> tuple[int, int, int] | None:
        """Return `(seq, revision, time)` of the message that carried `msg_id`, if remembered."""
        found: tuple[int, int, int] | None = self._execute(schema.SELECT_MSG_ID, (msg_id,)).get
        return found

    @raises_ours
    def last_msg_id(self) -> str | None:
        """Return the msg_id of the message with the last seq, as long as it is remembered or is in
        its headers. None if it had none."""
        last_seq = self.meta.last_seq
        if self._last_msg_id is None or self._last_msg_id[0] != last_seq:
            # The msg_ids of a window are scanned, once.
            found = self._execute(schema.SELECT_MSG_ID_OF, (last_seq,)).get
            self._last_msg_id = (last_seq, found)
        if self._last_msg_id[1] is None:
            # Once, too: the headers of a message with a large value are slow to get at.
            self._last_msg_id = (last_seq, self._msg_id_in_headers(last_seq) or "")
        return self._last_msg_id[1] or None

    def _msg_id_in_headers(self, seq: int) -> str | None:
        if not self.subjects.is_marked:
            # No message has a header block.
            return None
        if self.encryption.exists:
            row = self.message(seq)
            headers: Any = None if row is None else row[4]
        else:
            headers = self._execute(schema.SELECT_HEADERS, (seq,)).get
        return msg_id_in(headers) if headers and headers[0] == FIRST_BYTE else None

    @raises_ours
    def headers_of(self, seqs: Iterable[int]) -> dict[int, Any]:
        """Return the headers of each of these messages that is in the file, as the wire carries
        them."""
        if self.encryption.exists:
            found = filter(None, map(self.message, seqs))
            return {
                row[0]: unpack_headers(row[4])
                for row in found
                if not isinstance(row[3], ArchivedMessage)
            }
        rows: Any = self._execute(schema.SELECT_HEADERS_OF_MANY, (integers(seqs),))
        return {seq: unpack_headers(packed) for seq, packed in rows}

    @raises_ours
    def archivable(
        self, table: str, *, revision: int, time: int, max_blocks: int
    ) -> list[ArchiveDraft]:
        """Return the blocks that may be archived in `table`, of messages
        up to a revision and a time."""
        place = ArchivePlace(table, self.store.tenant, self.store.name)
        return self._archived.drafts(
            place,
            revision=revision,
            time=time,
            end_seq=self._last_archivable,
            max_blocks=max_blocks,
        )

    @raises_ours
    def oldest_time(self) -> int | None:
        """Return the time of the first message that may be archived; None if there is none."""
        start_seq = self._archived.last_seq() + 1 if self._archived.exists else 1
        found = self._execute_variant(
            schema.SELECT_ARCHIVABLE, (start_seq, self._last_archivable, schema.BLOCKS_ALONE, 1)
        ).get
        return None if found is None else int(found[2])

    @raises_ours
    def archived_count(self) -> int:
        """Return how many messages are archived."""
        return self._archived.sum(1, LARGEST_SEQ)[0] if self._archived.exists else 0

    @property
    def _last_archivable(self) -> int:
        """The last seq that may be archived. `last_msg_id` may need the headers of the last
        message, and those of an encrypted one are known only with its key."""
        return self.meta.last_seq - 1 if self.encryption.exists else LARGEST_SEQ

"""The entries of a kv, as they are and, with a history, as they were."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import apsw

from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.applying import unpack_headers
from holdfast.shared_fs.store_file.history.history_rows import HistoryReads
from holdfast.shared_fs.store_file.reading.file_rows import FileRows
from holdfast.shared_fs.store_file.row_pages import Row, RowPage
from holdfast.shared_fs.store_file.sqlite_connection import raises_ours

#: The end of a range of keys without an end; see schema.SELECT_ENTRIES.
_NO_KEY_END: Final = b"\xff"


class EntryRows(FileRows):
    """Reads entries by their keys."""

    @raises_ours
    def entry(self, key: str) -> Row | None:
        """Return `(key, revision, time, value, headers)` with headers packed, or None."""
        found: Row | None = self._execute(schema.SELECT_ENTRY, (key,)).get
        return None if found is None else self._resolved(found)

    @raises_ours
    def entries_of(self, keys: Sequence[bytes], max_bytes: int, row_bytes: int) -> RowPage:
        """Return the entries of those of the keys, in UTF-8, that the kv has, in the order of the
        keys, as many as fit in one page: with headers as the wire carries them, and not decrypted.

        Each counts `row_bytes` beside its value and packed headers. One statement for all of them
        takes half the time of one for each.
        """
        # A cursor of its own: the page may be full before the last row.
        found = self._connection.execute(schema.SELECT_ENTRIES_OF, (apsw.carray(tuple(keys)),))
        rows: list[Row] = []
        size_bytes = 0
        for row in found:
            wanted_bytes = row_bytes + len(row[3])
            if row[4] is not None:
                wanted_bytes += len(row[4])
                row = (*row[:4], unpack_headers(row[4]))
            if rows and size_bytes + wanted_bytes > max_bytes:
                return RowPage(self._all_large_of(rows), size_bytes, more=True)
            rows.append(row)
            size_bytes += wanted_bytes
        return RowPage(self._all_large_of(rows), size_bytes, more=False)

    @raises_ours
    def entry_state(self, key: str) -> tuple[int, int] | None:
        """Return `(revision, bytes)` of a key, or None."""
        found: tuple[int, int] | None = self._execute(schema.SELECT_ENTRY_STATE, (key,)).get
        return found

    def entries(
        self, prefix: str, after_key: str | None, limit: int, *, with_values: bool
    ) -> Iterator[Row]:
        """Yield rows as `entry` does, in key order, of the keys with `prefix` after `after_key`."""
        # In the order of UTF-8 bytes, nothing is between a key and
        # the same key with a NUL appended.
        start = prefix if after_key is None else max(prefix, after_key + "\x00")
        statement = schema.SELECT_ENTRIES if with_values else schema.SELECT_KEYS
        return self._large_in(self._rows(statement, (start, _prefix_end(prefix), limit)))

    @raises_ours
    def entry_states(
        self, prefix: str, after_key: str | None, limit: int
    ) -> list[tuple[str, int, int]]:
        """Return `(key, revision, bytes)` of the first `limit` keys with `prefix` after
        `after_key`, in their order."""
        start = prefix if after_key is None else max(prefix, after_key + "\x00")
        bindings = (start, _prefix_end(prefix), limit)
        found: list[Any] = self._execute(schema.SELECT_ENTRY_STATES, bindings).fetchall()
        return found

    @raises_ours
    def keys_after_revision(self, revision: int, limit: int) -> list[tuple[str, int]]:
        """Return `(key, revision)` of the first `limit` keys set after a revision, by revision."""
        bindings = (revision, limit)
        found: list[Any] = self._execute(schema.SELECT_KEYS_AFTER_REVISION, bindings).fetchall()
        return found

    @raises_ours
    def entry_at(self, key: str, revision: int) -> tuple[Row | None, bool]:
        """Return a row as `entry` does as of a revision, or None; and whether None means that there
        was none."""
        present = self.entry(key)
        if present is not None and present[1] <= revision:
            return present, True
        row, is_known = self._history_reads.version_at(key, revision)
        return None if row is None else self.encryption.packed(row), is_known

    @raises_ours
    def versions(self, key: str) -> list[tuple[Any, ...]]:
        """Return the former values of a key in the history, by revision: rows as `entry` returns
        them, with the revision that ended each, and the time if that was a delete, else None."""
        return [*self.encryption.all_packed(self._history_reads.versions(key))]

    @raises_ours
    def sizes_of_versions(self, key: str) -> list[tuple[int, int]]:
        """Return `(revision, bytes)` of the former values of a key in the history, by revision."""
        return self.history.sizes_of(key) if self.history.exists else []

    @raises_ours
    def oldest_versions(self, limit: int) -> list[tuple[int, int, int]]:
        """Return `(revision, bytes, time)` of the former values that were set first."""
        return self.history.oldest(limit) if self.history.exists else []

    @raises_ours
    def expiring_versions(self, limit: int) -> list[tuple[int, int, int]]:
        """Return `(revision, bytes, expires)` of the former values whose ttls end first."""
        return self.history.expiring(limit) if self.history.exists else []

    @raises_ours
    def entries_at(
        self, prefix: str, after_key: str | None, revision: int, limit: int, *, with_values: bool
    ) -> tuple[list[Row], bool]:
        """Return the first `limit` entries as of a revision, as `entries` yields them; and whether
        these are all that there were up to the last of them. For a kv with a history."""
        start = prefix if after_key is None else max(prefix, after_key + "\x00")
        rows, is_whole = self._history_reads.entries_at(
            start, _prefix_end(prefix), revision, limit, with_values=with_values
        )
        return [*self.encryption.all_packed(rows)], is_whole

    def _all_large_of(self, rows: list[Row]) -> list[Row]:
        return list(map(self._large_of, rows)) if self._has_bodies() else rows

    @property
    def _history_reads(self) -> HistoryReads:
        return HistoryReads(self._execute, self._bodies, self.history)


def _prefix_end(prefix: str) -> str | bytes:
    """Return the first text, in code point order, after every text that starts with `prefix`."""
    points = [ord(character) for character in prefix]
    while points:
        point = points.pop()
        if point < 0x10FFFF:
            # The code points of surrogates are not text.
            successor = 0xE000 if point == 0xD7FF else point + 1
            return "".join(map(chr, points)) + chr(successor)
    return _NO_KEY_END

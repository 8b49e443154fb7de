"""What all reads of a store file share: its connection, and how its rows become those that callers
get. The archived messages that belong between them are added, the references to large values put
in their wire form, and encrypted values decrypted.
"""

from __future__ import annotations

import json
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from heapq import merge
from itertools import chain, islice
from operator import itemgetter
from typing import Any, Final

import apsw

from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.applying import StoreMeta, unpack_headers
from holdfast.shared_fs.store_file.archived_blocks import ArchivedBlocks
from holdfast.shared_fs.store_file.bodies import Bodies
from holdfast.shared_fs.store_file.chain.chain_rows import NO_CHAIN, StoredChain
from holdfast.shared_fs.store_file.encrypted.encrypted_rows import (
    NO_ENCRYPTION,
    StoredEncryption,
)
from holdfast.shared_fs.store_file.history.history_rows import NO_HISTORY, StoredHistory
from holdfast.shared_fs.store_file.made_once import made_once
from holdfast.shared_fs.store_file.row_pages import Row, RowPage, value_of
from holdfast.shared_fs.store_file.sqlite_connection import our_error, raises_ours
from holdfast.shared_fs.store_file.subject_rows import StoredSubjects

#: No seq is larger: this is SQLite's largest integer.
LARGEST_SEQ: Final = (1 << 63) - 1
#: Rows fetched at once, after a ramp, so that few rows too many are in
#: memory if a page has large values.
_MAX_ROWS_AT_ONCE: Final = 64

_seq_of: Final = itemgetter(0)


class FileRows(ABC):
    """A store file as far as all reads need it. Not for two threads at once."""

    def __init__(self, store: StoreId) -> None:
        self.store = store
        self.meta = StoreMeta(0, "", "", 0, 0, 0, 0, 0, 0)
        # Weak, so that a file that nobody has goes at once (`protocol/serving/garbage.py`).
        weak = weakref.proxy(self)

        def execute(*statement: Any) -> apsw.Cursor:
            found: apsw.Cursor = weak._execute(*statement)
            return found

        def execute_variant(*statement: Any) -> apsw.Cursor:
            found: apsw.Cursor = weak._execute_variant(*statement)
            return found

        self.subjects = StoredSubjects(execute, store)
        self._archived = ArchivedBlocks(execute_variant)
        #: The history of a kv.
        self.history = StoredHistory(execute)
        #: Encrypted values, and what decrypts them.
        self.encryption = StoredEncryption(execute)
        #: The chain of the store.
        self.chain = StoredChain(execute, is_kv=store.kind == StoreKind.KV)
        #: What there was before a preview.
        self._made = (False, (False, False), NO_HISTORY, NO_CHAIN, NO_ENCRYPTION)
        #: The msg_id of the message with a seq: None if its headers may have one, or empty.
        self._last_msg_id: tuple[int, str | None] | None = None

    @abstractmethod
    def _unseal(self) -> apsw.Connection:
        """Return a connection, when one is needed for the first time."""

    @property
    @abstractmethod
    def is_sealed(self) -> bool:
        """It has no connection, lock or WAL, and all of it is durable."""

    @property
    def is_awake(self) -> bool:
        """It has a connection."""
        return "_connection" in self.__dict__

    @made_once
    def _connection(self) -> apsw.Connection:
        return self._unseal()

    @made_once
    def _cursor(self) -> apsw.Cursor:
        # One cursor for every statement that is run to its end at once, as `get` and `fetchall` do.
        # An unfinished statement would hold up the checkpoint.
        return self._connection.cursor()

    @made_once
    def _execute(self) -> Callable[..., apsw.Cursor]:
        return self._cursor.execute

    def _execute_variant(self, statement: str, *bindings: Any) -> apsw.Cursor:
        return self._execute(self.subjects.variant(statement), *bindings)

    @made_once
    def _bodies(self) -> Bodies:
        return Bodies(self._execute)

    @property
    def has_archived(self) -> bool:
        """True if messages of it were archived: their rows have an ArchivedMessage as value."""
        return self._archived.exists

    @raises_ours
    def limits(self) -> tuple[dict[str, Any], bool]:
        """Return the store's configuration without defaults, and whether a row ever had a ttl."""
        config, has_ttl = self._execute(schema.SELECT_LIMITS).get
        return {} if config is None else json.loads(config), bool(has_ttl)

    @raises_ours
    def _resolved(self, row: Row) -> Row:
        """Return a row with a large value in its wire form, decrypted if there is a cipher."""
        found = self._bodies.resolve(row)
        return self.encryption.packed(found) if self.encryption.exists else found

    @raises_ours
    def _large_of(self, row: Row) -> Row:
        return self._bodies.resolve(row)

    @raises_ours
    def _has_bodies(self) -> bool:
        return self._bodies.there

    def _large_in(self, chunks: Iterator[list[Row]]) -> Iterator[Row]:
        rows = chain.from_iterable(chunks)
        if not (self._has_bodies() or self.encryption.exists):
            return rows
        return map(self._resolved, rows)

    def _with_large(self, page: RowPage) -> RowPage:
        """Return a page with large values in their wire form, decrypted if there is a cipher."""
        if not all(map(value_of, page.rows)) and self._has_bodies():
            page = page._replace(rows=list(map(self._large_of, page.rows)))
        if self.encryption.exists:
            page = page._replace(rows=list(map(self._decrypted, page.rows)))
        return page

    def _decrypted(self, row: Row) -> Row:
        """Return a row of a page decrypted, with its headers as the wire carries them."""
        found = self.encryption.packed(row)
        return row if found is row else (*found[:4], unpack_headers(found[4]), *found[5:])

    def _archived_from(self, start_seq: int) -> bool:
        return self._archived.exists and start_seq <= self._archived.last_seq()

    def _with_archived(self, rows: Iterator[Row], start_seq: int, end_seq: int) -> Iterator[Row]:
        """Yield rows and the archived messages between them, by seq."""
        no_subject = (None,) if self.subjects.exists else ()
        archived = (
            (*each.row, *no_subject) for each in self._archived.messages(start_seq, end_seq)
        )
        return merge(rows, archived, key=_seq_of)

    def _rows(self, statement: str, bindings: tuple[Any, ...]) -> Iterator[list[Row]]:
        """Yield the rows of a statement, some at a time."""
        statement = self.subjects.variant(statement)
        try:
            # A cursor of its own: the caller may read something else before it is done.
            found = self._connection.execute(statement, bindings)
            count = 1
            while rows := list(islice(found, count)):
                yield rows
                count = min(2 * count, _MAX_ROWS_AT_ONCE)
        except apsw.Error as error:
            raise our_error(error, self.store) from error

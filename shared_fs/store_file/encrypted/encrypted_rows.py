"""Encrypted values as rows of a file (`encrypted_values.py` says what they look like).

A file stores them like any others, needs no key for that, and gives them out as they are. With a
`Cipher` it gives out what was encrypted. With its first encrypted value a file gets the format
ENCRYPTED_FORMAT, which earlier versions of holdfast refuse: they would take a box for headers.
With the first one in a chain it gets ENCRYPTED_CHAIN_FORMAT. Files without one pay nothing.

`former_names` lists the names under which its values may have been encrypted, besides its own: a
fork has values of its parent.

`rewritten` says that an owner has encrypted all values anew: with which key, when it took which
epoch, and how many archived messages it has left as they were. It goes wherever the content goes,
and says something of the store with this name alone. It proves nothing of values that were written
later, nor of copies: `persist/jobs/reencrypting.py` looks at both. Most files have no such table,
and earlier versions of holdfast overlook it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, Protocol

import apsw

from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.encrypted.encrypted_values import BOX_BYTES, is_box
from holdfast.shared_fs.store_file.pages.page_sizes import raise_format, read_format

_CREATE: Final = "CREATE TABLE former_names(name TEXT PRIMARY KEY) STRICT, WITHOUT ROWID"
_SELECT_NAMES: Final = "SELECT name FROM former_names ORDER BY name"
_INSERT_NAME: Final = "INSERT OR IGNORE INTO former_names VALUES (?)"
_HAS_REWRITTEN: Final = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'rewritten')"
_CREATE_REWRITTEN: Final = """
CREATE TABLE IF NOT EXISTS rewritten(
    name TEXT PRIMARY KEY,
    key INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    archived INTEGER NOT NULL
) STRICT, WITHOUT ROWID
"""
_SELECT_REWRITTEN: Final = (
    "SELECT key, epoch, archived FROM rewritten"
    " WHERE name = (SELECT name FROM meta WHERE id = 1)"
)
_INSERT_REWRITTEN: Final = (
    "INSERT OR REPLACE INTO rewritten SELECT name, ?, ?, ? FROM meta WHERE id = 1"
)


class Cipher(Protocol):
    """Decrypts the values of one store. Raises KeyUnavailableError, TenantShreddedError,
    DecryptionFailedError."""

    def row(
        self, place: Any, revision: int, value: Any, headers: bytes
    ) -> tuple[Any, bytes | None]: ...
    def chunk(self, upload_id: bytes, offset: int, data: bytes) -> bytes: ...


class RewriteMark(NamedTuple):
    """That all values of a file were encrypted anew."""

    #: The number of the data key.
    key: int
    #: That of the owner which began with the new values. What has an earlier one is void.
    epoch: int
    #: How many archived messages were left as they were.
    archived: int


class EncryptionState(NamedTuple):
    """Whether a file has encrypted values, and its former names."""

    exists: bool = False
    former_names: tuple[str, ...] = ()
    #: Some of the values have their leaf.
    is_chained: bool = False
    rewritten: RewriteMark | None = None


NO_ENCRYPTION: Final = EncryptionState()


class StoredEncryption:
    """The encrypted values of one open file. Without any, nothing queries the file."""

    __slots__ = ("_execute", "cipher", "state")

    def __init__(self, execute: Callable[..., apsw.Cursor]) -> None:
        """`execute(statement, bindings)` returns a cursor of the file."""
        self._execute = execute
        self.state = NO_ENCRYPTION
        #: Decrypts what is read from now on. None: it is given out as it is.
        self.cipher: Cipher | None = None

    @property
    def exists(self) -> bool:
        """The file has, or had, an encrypted value."""
        return self.state.exists

    def load(self) -> None:
        """Read the state from a file of ENCRYPTED_FORMAT."""
        names = tuple(str(row[0]) for row in self._execute(_SELECT_NAMES))
        version = read_format(self._execute)
        row: Any = None
        if self._execute(_HAS_REWRITTEN).get:
            row = self._execute(_SELECT_REWRITTEN).get
        self.state = EncryptionState(
            True,
            names,
            version >= schema.ENCRYPTED_CHAIN_FORMAT,
            None if row is None else RewriteMark(*row),
        )

    def go_back(self, state: EncryptionState) -> None:
        """Return to the state before a transaction that is rolled back."""
        self.state = state

    def mark(self, *, is_chained: bool) -> None:
        """Note that the file gets an encrypted value, or one in a chain. Formats only go up, so
        whatever else marks the file comes first."""
        if self.state.exists and self.state.is_chained >= is_chained:
            return
        if not self.state.exists:
            self._execute(_CREATE)
        version = schema.ENCRYPTED_CHAIN_FORMAT if is_chained else schema.ENCRYPTED_FORMAT
        raise_format(self._execute, version)
        self.state = self.state._replace(exists=True, is_chained=is_chained)

    def note_rewritten(self, rewritten: RewriteMark) -> None:
        """Note that all values were encrypted anew. Without any, there is nothing to note."""
        if self.state.exists:
            self._execute(_CREATE_REWRITTEN)
            self._execute(_INSERT_REWRITTEN, rewritten)
            self.state = self.state._replace(rewritten=rewritten)

    def becomes_other(self, former_name: str) -> None:
        """Note that the file becomes that of a store with another name."""
        if self.state.exists:
            self._execute(_INSERT_NAME, (former_name,))
            self.load()

    # Reading
    def packed(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a row `(place, revision, time, value, packed headers, ...)` decrypted."""
        if self.cipher is None or not is_box(row[4]):
            return row
        value, headers = self.cipher.row(row[0], row[1], row[3], row[4])
        return (*row[:3], value, headers, *row[5:])

    def all_packed(self, rows: Iterable[tuple[Any, ...]]) -> Iterable[tuple[Any, ...]]:
        """Return rows decrypted; the same ones if there is nothing to decrypt."""
        return map(self.packed, rows) if self.state.exists else rows

    def chunk(
        self, upload_id: bytes, offset: int, data: bytes, clear_bytes: int
    ) -> bytes:
        """Return a chunk decrypted that has `clear_bytes` in clear."""
        if self.cipher is None or len(data) == clear_bytes:
            return data
        return self.cipher.chunk(upload_id, offset, data)


def excess_chunks(found_bytes: int, size_bytes: int, chunk_count: int) -> int | None:
    """Return how many of the chunks of a large value are encrypted, by their length; None if no
    number of them makes it so long."""
    count, rest = divmod(found_bytes - size_bytes, BOX_BYTES)
    return None if rest or not 0 <= count <= chunk_count else count

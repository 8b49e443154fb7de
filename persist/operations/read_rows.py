"""Rows of a store file as read operations return them: their sizes, how many of them one answer may
have, and their archived values.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.limits import PAGE_BYTES, PAGE_ROWS
from holdfast.shared_fs.encryption.store_cipher import StoreCipher
from holdfast.shared_fs.store_file.applying import unpack_headers
from holdfast.shared_fs.store_file.archived_blocks import ArchivedMessage, Bodies, Body
from holdfast.shared_fs.store_file.encrypted.encrypted_values import is_box
from holdfast.shared_fs.store_file.row_pages import LEAST_ROWS, Row

#: The columns of a row without a subject.
_PLAIN_COLUMNS: Final = 5
#: What a row takes besides its value and headers, roughly.
ROW_BYTES: Final = 32


class ReadBounds(NamedTuple):
    """How much a group of reads may do at once, and how much a page of its answers may hold."""

    #: No operation begins once this returns True.
    is_late: Callable[[], bool] = lambda: False
    page_rows: int = PAGE_ROWS
    page_bytes: int = PAGE_BYTES


UNHURRIED: Final = ReadBounds()


class ArchiveNeededError(HoldfastError):
    """The answer needs `messages`, whose values are in the archive. Never leaves the server."""

    code = "archive_needed"
    template = "messages are in the archive"

    def __init__(self, messages: list[ArchivedMessage]) -> None:
        super().__init__()
        self.messages = messages


class DecryptedBodies(Mapping[tuple[int, int], Body]):
    """Archived values of an encrypted store, each decrypted when it is asked for. That raises
    KeyUnavailableError, TenantShreddedError, DecryptionFailedError."""

    def __init__(self, bodies: Bodies, cipher: StoreCipher) -> None:
        self._bodies = bodies
        self._cipher = cipher

    def __getitem__(self, place: tuple[int, int]) -> Body:
        value, headers = self._bodies[place]
        if not is_box(headers):
            return value, headers
        assert type(headers) is bytes
        value, packed = self._cipher.row(*place, value, headers)
        return value, unpack_headers(packed)

    def __contains__(self, place: object) -> bool:
        return place in self._bodies

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._bodies)

    def __len__(self) -> int:
        return len(self._bodies)


def filled(rows: list[Row], bodies: Bodies) -> list[Row]:
    """Return rows with their archived values filled in. Raises ArchiveNeededError."""
    needed = [
        row[3]
        for row in rows
        if isinstance(row[3], ArchivedMessage) and (row[0], row[1]) not in bodies
    ]
    if needed:
        raise ArchiveNeededError(needed)
    return [
        (*row[:3], *bodies[row[0], row[1]]) if isinstance(row[3], ArchivedMessage) else row
        for row in rows
    ]


def message_answer(row: Row | None, bodies: Bodies) -> tuple[Any, int]:
    """Return a message as it is sent, and its size; None if there is none. Raises
    ArchiveNeededError."""
    if row is None or not isinstance(row[3], ArchivedMessage):
        return answer_of(row)
    [whole] = filled([row], bodies)
    return whole, ROW_BYTES + row[3].size_bytes


def answer_of(row: Row | None) -> tuple[Any, int]:
    """Return a row that is not archived as it is sent, and its size; None if there is none."""
    if row is None:
        return None, ROW_BYTES
    if row[4] is None and len(row) == _PLAIN_COLUMNS:
        # An upper bound of the key's bytes, cheaper than counting them.
        key_bytes = 4 * len(row[0]) if type(row[0]) is str else 0
        return row, ROW_BYTES + key_bytes + len(row[3])
    return with_headers(row), bytes_of_row(row)


def with_headers(row: Row) -> Row:
    """Return a row with its headers as they are sent."""
    return row if row[4] is None else (*row[:4], unpack_headers(row[4]), *row[5:])


def bytes_of_row(row: Row) -> int:
    """Return the size of a row that is not archived."""
    size_bytes = ROW_BYTES
    for text in (row[0], *row[5:]):
        if type(text) is str:
            size_bytes += len(text) if text.isascii() else len(text.encode())
    for blob in row[3:5]:
        if blob is not None:
            size_bytes += len(blob)
    return size_bytes


def plain_page(
    rows: Iterable[Row],
    row_limit: int,
    max_bytes: int,
    is_late: Callable[[], bool] = lambda: False,
) -> tuple[list[Any], int, bool]:
    """Return wire rows within the bounds, their size, and whether there are more. Once `is_late`
    the page ends, after `LEAST_ROWS`: entries of a kv that has left memory are anywhere in its
    file, and each may need the disk."""
    page: list[Any] = []
    size_bytes = 0
    for row in rows:
        row_bytes = bytes_of_row(row)
        if len(page) == row_limit or (page and size_bytes + row_bytes > max_bytes):
            return page, size_bytes, True
        if len(page) % (LEAST_ROWS + 1) == LEAST_ROWS and is_late():
            return page, size_bytes, True
        page.append(with_headers(row))
        size_bytes += row_bytes
    return page, size_bytes, False

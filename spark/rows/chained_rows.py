"""The chain of a store as columns of its rows: the leaf of each message or set, the chain after it.

An image tells the chain after its last message, and keeps the leaves of those that were removed. So
the chain after each message follows from where the table ends, or from the image's base.
Invariants:

- What the rows of a reading give is what the image tells; otherwise the image is damaged, or is not
  that of the store which the table has.
- A removed message whose row the table does not have has a row `leaf`.
- Where nothing before is known, a row `base` tells the chain that the next one follows.

The log tells the chain after each tick. `LoggedChain` finds that of each row in between, as soon as
one before it is known.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import apsw

from holdfast.protocol.chain.hashing import GENESIS, ChainLink, after, leaf_of, leaf_of_set
from holdfast.protocol.errors import StoreDamagedError
from holdfast.protocol.frames import unpack
from holdfast.protocol.header_block import FIRST_BYTE, HeaderBlock
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.bucket.bucket_errors import ObjectDamagedError
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.chain import chain_schema as sql
from holdfast.shared_fs.store_file.chain.chain_rows import StoredChain
from holdfast.shared_fs.store_file.chain.kept_leaves import kept_leaf_of, kept_leaf_of_set
from holdfast.shared_fs.store_file.encrypted.encrypted_values import BOX_FIRST_BYTE
from holdfast.shared_fs.store_file.pages.page_sizes import read_format
from holdfast.spark.rows.gathering import once_read
from holdfast.spark.rows.rows import (
    BASE,
    CONFIGURE,
    LEAF,
    SET,
    ExportedRow,
    Piece,
    RowOrigin,
    Shape,
)
from holdfast.spark.tables.watermarks import Watermark

_LARGEST: Final = (1 << 63) - 1


class ChainStart(NamedTuple):
    """The link that the rows of a reading follow. If the table does not know it, it gets a row."""

    link: ChainLink
    is_known: bool


class ImageChain:
    """The chain of an image."""

    def __init__(
        self, store: StoreId, execute: Callable[..., apsw.Cursor], *, has_subjects: bool
    ) -> None:
        """`execute` makes a cursor for each statement."""
        self._store = store
        self._is_kv = store.kind == StoreKind.KV
        self._execute = execute
        self._has_subjects = has_subjects
        self._stored = StoredChain(execute, is_kv=self._is_kv)
        self._stored.load()
        self._believes = read_format(execute) >= schema.ENCRYPTED_CHAIN_FORMAT

    @property
    def value(self) -> bytes:
        """The chain after the last message; nothing if the store keeps none."""
        return self._stored.value or b""

    def lacks(self, since: Watermark) -> bool:
        """Return whether messages of the chain are in the table without it: an earlier version has
        exported them."""
        number = self._number(since)
        return bool(self.value) and not since.chain and self._stored.base.seq < number

    def start(self, since: Watermark | None) -> ChainStart:
        """Return where the rows after a watermark begin."""
        base = self._stored.base
        if since is None or not since.chain or self._number(since) < base.seq:
            return ChainStart(base, is_known=False)
        return ChainStart(ChainLink(self._number(since), since.chain), is_known=True)

    def _number(self, since: Watermark) -> int:
        return since.revision if self._is_kv else since.last_seq

    def filled(
        self, pieces: Iterable[Piece], start: ChainStart, origin: RowOrigin, beginning: ExportedRow
    ) -> Iterator[Piece]:
        """Yield the pieces of a reading with the chain in their rows, all of which are changes.
        `beginning` has the revision after which they are, and the time of the image. Raises
        StoreDamagedError before any of them."""
        found = self._filled(pieces, start, origin, beginning)
        yield from once_read(found, lambda: self._check(start))

    def _filled(
        self, pieces: Iterable[Piece], start: ChainStart, origin: RowOrigin, beginning: ExportedRow
    ) -> Iterator[Piece]:
        kept = _KeptLeaves(self._execute, start.link.seq)
        chain, last_revision = start.link.chain, beginning.revision
        if not start.is_known:
            base = beginning._replace(operation=BASE, seq=start.link.seq, chain=chain)
            yield Piece(origin, Shape.CHANGES, [base])
        for piece in pieces:
            rows: list[ExportedRow] = []
            for row in _as_rows(piece):
                number = self._link_of(row, start.link.seq)
                for seq, leaf in kept.before(self._limit(row, number)):
                    chain = after(chain, leaf)
                    rows.append(self._leaf_row(seq, row.revision, row.time, leaf, chain))
                if number is not None:
                    leaf = leaf_of_exported(row, is_kv=self._is_kv, believes=self._believes)
                    told = kept.take(number)
                    chain = after(chain, leaf if told is None else told)
                    if told is not None and told != leaf:
                        # It was archived, and is not read back in the form that was stored.
                        rows.append(self._leaf_row(number, row.revision, row.time, told, chain))
                    else:
                        row = linked(row, leaf, chain)
                rows.append(row)
                last_revision = row.revision
            yield Piece(piece.origin, Shape.CHANGES, rows)
        rest: list[ExportedRow] = []
        for seq, leaf in kept.before(_LARGEST):
            chain = after(chain, leaf)
            rest.append(self._leaf_row(seq, last_revision, beginning.time, leaf, chain))
        if rest:
            yield Piece(origin, Shape.CHANGES, rest)
        self._compare(chain)

    def _check(self, start: ChainStart) -> None:
        """Compare the chain that all messages of the image give."""
        chain = start.link.chain
        for seq, leaf in self._stored.leaves(self._execute, has_subjects=self._has_subjects):
            if seq > start.link.seq:
                chain = after(chain, leaf)
        self._compare(chain)

    def _compare(self, chain: bytes) -> None:
        if chain != self.value:
            reason = (
                "its image: its messages do not give its chain, or it is not the one that the table"
                f" has: {chain.hex()[:16]}... instead of {self.value.hex()[:16]}..."
            )
            raise StoreDamagedError(store=str(self._store), reason=reason)

    def _link_of(self, row: ExportedRow, start: int) -> int | None:
        """Return the number of the link that a row is; None if it is none."""
        if row.operation != SET:
            return None
        number = row.revision if self._is_kv else row.seq or 0
        return number if number > start else None

    def _limit(self, row: ExportedRow, number: int | None) -> int:
        """Return before which number removed messages come before a row."""
        return row.revision if self._is_kv else number or 0

    def _leaf_row(
        self, number: int, revision: int, time: int, leaf: bytes, chain: bytes
    ) -> ExportedRow:
        """Return the row of a removed message. It is among those that were made at its time; of a
        stream, nobody knows its revision."""
        at = number if self._is_kv else revision
        return ExportedRow(LEAF, at, number, None, time, None, None, leaf=leaf, chain=chain)


class _KeptLeaves:
    """The leaves that an image keeps of removed and archived messages, in order."""

    def __init__(self, execute: Callable[..., apsw.Cursor], after_number: int) -> None:
        self._rows: Iterator[Any] = iter(execute(sql.SELECT_LEAVES, (after_number + 1, _LARGEST)))
        self._next: Any = next(self._rows, None)

    def before(self, number: int) -> Iterator[tuple[int, bytes]]:
        while self._next is not None and self._next[0] < number:
            found, self._next = self._next, next(self._rows, None)
            yield found

    def take(self, number: int) -> bytes | None:
        """Return the leaf of a message, if there is one."""
        if self._next is None or self._next[0] != number:
            return None
        _, leaf = self._next
        self._next = next(self._rows, None)
        return bytes(leaf)


def _as_rows(piece: Piece) -> Sequence[ExportedRow]:
    assert piece.shape is Shape.CHANGES, "rows of a store with a chain have all fields"
    rows: list[Any] = list(piece.rows)
    return rows


def leaf_of_exported(row: ExportedRow, *, is_kv: bool, believes: bool = True) -> bytes:
    """Return the leaf of a set that has not been brought into the table's form yet. What a box
    tells is not believed of an image whose format says that it has none."""
    headers, value = row.headers, row.value
    if type(headers) is bytes and headers[0] not in (FIRST_BYTE, BOX_FIRST_BYTE):
        headers = unpack(headers)
    stored: Any = value
    if row.large_sha256 is not None:
        stored = (None, row.large_bytes, bytes.fromhex(row.large_sha256))
    if is_kv:
        of_set = kept_leaf_of_set if believes else leaf_of_set
        return of_set(row.revision, row.time, stored, headers, row.key or "")
    of_message = kept_leaf_of if believes else leaf_of
    return of_message(row.seq or 0, row.time, stored, headers, row.subject)


def linked(row: ExportedRow, leaf: bytes, chain: bytes | None) -> ExportedRow:
    """Return a row with its leaf, and the headers that the table's map does not tell in full."""
    headers = row.headers
    if type(headers) is HeaderBlock:
        headers = headers.block
    is_block = type(headers) is bytes and headers[0] == FIRST_BYTE
    return row._replace(leaf=leaf, chain=chain, stored_headers=headers if is_block else None)


class LoggedChain:
    """Finds the chain after each row of a range of the log, whose rows have their leaves; the last
    one of a tick has the chain that its owner told."""

    def __init__(self, before: bytes, *, is_beginning: bool) -> None:
        """`before` is the chain before the rows; nothing if it is not known. With `is_beginning`
        they are the first ones of the store."""
        self._chain = before
        self._is_beginning = is_beginning

    def filled(self, row: ExportedRow, key: str) -> ExportedRow:
        """Return the next row, which is of the log object `key`, with its chain. Raises
        ObjectDamagedError if its owner told another."""
        if row.operation == CONFIGURE:
            settings = json.loads(row.value or b"{}")
            if self._is_beginning and not self._chain and settings.get("chain"):
                self._chain = GENESIS
            return row
        if row.leaf is None:
            return row
        if self._is_beginning and not self._chain:
            # It was there before the chain.
            return row._replace(leaf=None, stored_headers=None)
        computed = after(self._chain, row.leaf) if self._chain else b""
        if computed and row.chain is not None and computed != row.chain:
            reason = f"revision {row.revision} does not give the chain that it tells"
            raise ObjectDamagedError(key=key, reason=reason)
        self._chain = computed or row.chain or b""
        return row._replace(chain=self._chain or None)

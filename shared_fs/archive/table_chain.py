"""Checks the chain of a store in a table of changes, and what somebody kept of it. Pure.

    found = check_table_chain([link_of_row(row, is_kv=False) for row in rows], kept)

A row of a message or set has its leaf and the chain after it (COLUMNS). A row `leaf` stands for one
whose value the table does not have: it was removed before an export saw it, or erased. A row `base`
tells the chain after a seq, of before which the table has nothing. So what follows a base can be
computed anew; the *parts* of a chain are separated by messages that came and went between two
exports and left no leaf.

Leaves are computed anew from the columns. The columns tell headers and values as applications wrote
them; where something else is stored, a header block or a compressed value, `stored_headers` and
`stored_value` have that. Rows of a table that knew no leaves yet may lack it: then they are
`unproven` if their leaf is another, and so are rows that are encrypted. Whatever is wrong is told
by the number of the first message that is concerned: its seq, or the revision of a set of a kv.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple

from holdfast.protocol.chain.checking import checked_link
from holdfast.protocol.chain.hashing import GENESIS, ChainLink, after, leaf_of, leaf_of_set
from holdfast.protocol.compression import ENCODING_HEADER, ZSTD, decompressed
from holdfast.protocol.errors import ValueUnreadableError
from holdfast.protocol.header_block import HeaderBlock
from holdfast.protocol.messages import Ack
from holdfast.shared_fs.store_file.encrypted.encrypted_values import box_in_table, leaf_in_box

#: The columns of a table that tell of chains.
COLUMNS: Final = ("leaf", "chain", "stored_headers", "stored_value")
LEAF: Final = "leaf"
BASE: Final = "base"
SET: Final = "set"
_KNOWN: Final = frozenset((SET, LEAF, BASE))
#: The leaf of a row whose columns cannot be those of any message.
_NO_LEAF: Final = bytes(32)
_number: Final = attrgetter("number")


class LinkRow(NamedTuple):
    """What one row tells of the chain."""

    operation: str
    #: The seq of a message, the revision of a set; of a base, the last one that it covers.
    number: int
    leaf: bytes | None
    chain: bytes | None
    #: The leaf that the columns of a set give. That of an encrypted one is in the table as it is,
    #: so it proves nothing of the value.
    computed: bytes | None = None
    is_believed: bool = False


class AckOutcome(StrEnum):
    """What became of something that was kept."""

    #: The table gives the same chain.
    MATCHED = "matched"
    #: It gives another one: that message, or one before it, is not what it was, or is missing.
    DIFFERS = "differs"
    #: The table has nothing that it could be compared with: it begins after that.
    BEFORE = "before"
    #: The table ends before it.
    BEYOND = "beyond"


class KeptAck(NamedTuple):
    """What was found of one kept value. If it matches, nothing from `since` up to `number` has
    changed."""

    number: int
    outcome: AckOutcome
    since: int | None = None


class ChainPart(NamedTuple):
    """A part of the chain that follows from its base."""

    base: ChainLink
    #: `(number, leaf)` of each link, computed anew where the table has the values.
    links: Sequence[tuple[int, bytes]]
    #: What the table tells of the chain after the last link.
    told: ChainLink


@dataclass(frozen=True, slots=True)
class TableChain:
    """The chain of one store in a table."""

    #: In ascending order; empty if the store keeps none.
    parts: tuple[ChainPart, ...]
    #: What does not fit, by the number of a message.
    problems: tuple[str, ...]
    #: Messages whose leaf the table has, but whose columns do not tell how they were stored.
    unproven: tuple[int, ...]
    #: How many of them are encrypted.
    believed: int
    acks: tuple[KeptAck, ...]

    @property
    def is_sound(self) -> bool:
        """Nothing is wrong, and everything that was kept was found."""
        kept = all(each.outcome is AckOutcome.MATCHED for each in self.acks)
        return not self.problems and kept


def link_of_row(row: Mapping[str, Any], *, is_kv: bool) -> LinkRow:
    """Return what a row tells, by the names of the table's columns; absent columns are null.

    `time` is milliseconds since the epoch, `headers` a map or None.
    """
    operation = row["operation"]
    number = row["revision"] if is_kv and operation == SET else row.get("seq")
    told = operation, number or 0, row.get("leaf"), row.get("chain")
    if operation != SET:
        return LinkRow(*told)
    # An application may have written a header of that name: then the columns give the leaf.
    box = leaf_in_box(box_in_table(dict(row.get("headers") or {})))
    if box is not None and row.get("leaf") in (None, box):
        return LinkRow(*told, box, is_believed=True)
    return LinkRow(*told, leaf_of_row(row, is_kv=is_kv))


def leaf_of_row(row: Mapping[str, Any], *, is_kv: bool) -> bytes:
    """Return the leaf of the message or set that a row tells of; of 32 zeros if its columns are
    those of no message."""
    number, time = row["revision" if is_kv else "seq"], row["time"]
    value, headers = _stored(row)
    try:
        if is_kv:
            return leaf_of_set(number, time, value, headers, row["key"])
        return leaf_of(number, time, value, headers, row.get("subject"))
    except (TypeError, AttributeError, struct.error):
        # Columns that must have something are null, or out of range.
        return _NO_LEAF


def _stored(row: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return value and headers as they were stored; None for a value that is not the one which the
    other columns tell of."""
    value, headers = row.get("value"), dict(row.get("headers") or {}) or None
    block, packed = row.get("stored_headers"), row.get("stored_value")
    digest, size_bytes = row.get("large_sha256"), row.get("large_bytes")
    if block is not None:
        if (HeaderBlock(block).joined() or None) != headers:
            return None, None
        headers = block
    if digest is not None or size_bytes is not None:
        if value is not None and hashlib.sha256(value).hexdigest() != digest:
            return None, None
        try:
            value = (None, size_bytes, bytes.fromhex(digest or ""))
        except ValueError:
            return None, None
    elif packed is not None:
        marked = {**(headers or {}), ENCODING_HEADER: ZSTD}
        try:
            if decompressed(packed, marked, "a value")[0] != value:
                return None, None
        except ValueUnreadableError:
            return None, None
        value, headers = packed, marked
    return value, headers


def check_table_chain(
    rows: Iterable[LinkRow], kept: Iterable[ChainLink | Ack] = (), *, is_kv: bool = False
) -> TableChain:
    """Check the rows of one store, and what was kept of its chain.

    `rows` are those of the store's life, in any order: none before its last `reset` or `drop`.
    Raises InvalidArgumentError for something kept that has no number or no chain.
    """
    # Numbers begin at 1: what has none is nowhere in the chain, and is missing in it.
    wanted = [
        row for row in rows if row.number >= (row.operation != BASE) and row.operation in _KNOWN
    ]
    wanted.sort(key=lambda row: (row.number, row.operation == BASE))
    walk = _Walk(is_kv)
    numbered = [(number, list(found)) for number, found in groupby(wanted, key=_number)]
    for index, (number, found) in enumerate(numbered):
        link = [row for row in found if row.operation != BASE]
        if link:
            walk.link(number, link, numbered[index + 1 : index + 2])
        for row in found:
            if row.operation == BASE:
                walk.base(number, row.chain)
    return walk.result(kept)


class _Walk:
    """Goes from link to link. `chain` follows what the rows tell, so that what comes after a fault
    is checked too; acks are compared with `_strict`, which follows the values alone."""

    def __init__(self, is_kv: bool) -> None:
        self._what = "revision" if is_kv else "message"
        self._is_kv = is_kv
        self._parts: list[ChainPart] = []
        self._chain: bytes | None = None
        self._strict = GENESIS
        self._links: list[tuple[int, bytes]] = []
        #: By the number of each link: the chain after it, computed strictly, and the first number
        #: that it depends on; None for a base, which depends on nothing in the table.
        self._after: dict[int, tuple[bytes, int | None]] = {}
        self._base = ChainLink(0, GENESIS)
        self._at = 0
        self._problems: list[str] = []
        self._unproven: list[int] = []
        self._believed = 0

    def base(self, number: int, chain: bytes | None) -> None:
        if chain is None:
            self._problems.append(f"the base at {number} tells no chain")
            return
        if self._chain == chain:
            return
        if self._chain is not None and self._at == number:
            self._problems.append(
                f"the base at {number} tells another chain than {self._what} {number}"
            )
            return
        self._begin(ChainLink(number, chain))

    def link(self, number: int, rows: list[LinkRow], following: Sequence[Any]) -> None:
        told = list(dict.fromkeys(row.leaf for row in rows if row.leaf is not None))
        chains = list(dict.fromkeys(row.chain for row in rows if row.chain is not None))
        sets = [row for row in rows if row.operation == SET]
        if len(told) > 1 or len(chains) > 1 or len(sets) > 1:
            self._tell(number, "is in the table more than once, and not the same")
        chain = chains[0] if chains else None
        computed = sets[0].computed if sets else None
        if not told:
            if self._chain is not None:
                self._tell(number, "has no leaf in the table")
            return
        leaf = told[0]
        if sets and sets[0].is_believed:
            self._believed += 1
            self._unproven.append(number)
        elif computed is not None and computed != leaf and sets[0].leaf is None:
            # A row that knew no leaf, beside one that tells it.
            self._unproven.append(number)
            computed = leaf
        if self._chain is None and not self._first(number, leaf, chain):
            return
        assert self._chain is not None
        self._step(number, leaf, computed, chain, following)
        strict_leaf = leaf if computed is None else computed
        self._strict = after(self._strict, strict_leaf)
        self._links.append((number, strict_leaf))
        self._after[number] = self._strict, self._base.seq + 1

    def result(self, kept: Iterable[ChainLink | Ack]) -> TableChain:
        self._end()
        acks = tuple(self._compared(each) for each in sorted({checked_link(each) for each in kept}))
        return TableChain(
            tuple(self._parts), tuple(self._problems), tuple(self._unproven), self._believed, acks
        )

    def _first(self, number: int, leaf: bytes, chain: bytes | None) -> bool:
        """Begin where no base says where, and return whether this link can be checked."""
        if chain is None:
            return False
        if after(GENESIS, leaf) == chain:
            self._begin(ChainLink(number - 1, GENESIS))
            return True
        self._begin(ChainLink(number, chain))
        return False

    def _step(
        self,
        number: int,
        leaf: bytes,
        computed: bytes | None,
        chain: bytes | None,
        following: Sequence[Any],
    ) -> None:
        assert self._chain is not None
        before, previous = self._chain, self._at
        self._at = number
        changed = computed is not None and computed != leaf
        if chain is None or after(before, leaf) == chain:
            self._chain = after(before, leaf)
            if changed:
                self._tell(number, "is not what it was: its columns do not give its leaf")
        elif changed and computed is not None and after(before, computed) == chain:
            self._chain = chain
            self._tell(number, "has another leaf than its columns give")
        elif not changed and _follows(after(before, leaf), following):
            self._chain = after(before, leaf)
            self._tell(number, "has another chain than the messages around it give")
        else:
            self._chain = chain
            if changed:
                self._tell(number, "is not what it was: its columns do not give its leaf")
            lacks = not self._is_kv and number > previous + 1
            reason = "some are missing" if lacks else "one is missing, or was changed"
            between = f"{self._what}s {previous} and {number}"
            self._problems.append(f"its chain breaks between {between}: {reason}")

    def _begin(self, base: ChainLink) -> None:
        self._end()
        self._base, self._chain, self._strict = base, base.chain, base.chain
        self._at = base.seq
        self._links = []
        self._after.setdefault(base.seq, (base.chain, None))

    def _end(self) -> None:
        if self._chain is not None:
            told = ChainLink(self._at, self._chain)
            self._parts.append(ChainPart(self._base, tuple(self._links), told))

    def _compared(self, kept: ChainLink) -> KeptAck:
        number, chain = kept
        found = self._after.get(number)
        if found is not None:
            outcome = AckOutcome.MATCHED if found[0] == chain else AckOutcome.DIFFERS
            return KeptAck(number, outcome, found[1])
        if not self._parts or number > self._parts[-1].told.seq:
            return KeptAck(number, AckOutcome.BEYOND)
        inside = any(part.base.seq < number <= part.told.seq for part in self._parts)
        return KeptAck(number, AckOutcome.DIFFERS if inside else AckOutcome.BEFORE)

    def _tell(self, number: int, reason: str) -> None:
        self._problems.append(f"{self._what} {number} {reason}")


def _follows(chain: bytes, following: Iterable[tuple[int, list[LinkRow]]]) -> bool:
    """Return whether the next link confirms a chain."""
    for _, rows in following:
        for row in rows:
            if row.operation != BASE and row.leaf is not None and row.chain is not None:
                return after(chain, row.leaf) == row.chain
        return False
    return False

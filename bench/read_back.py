"""Checks that what is read back is what was stored. Pure. A benchmark that fails this has
no result.

All checks raise WrongReadBackError, which names the side, the work and the difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from holdfast.protocol.errors import HoldfastError


class WrongReadBackError(HoldfastError):
    """A side returned something else than it acknowledged."""

    code = "wrong_read_back"
    template = "{side} returned something else than was stored, in {work}: {reason}"


class ReadBackRow(NamedTuple):
    """A message that was read back."""

    seq: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Checker:
    """Checks one work of one side."""

    side: str
    work: str

    def count(self, what: str, expected: int, found: int) -> None:
        """Check a number of messages or keys."""
        if expected != found:
            self._wrong(f"{what} holds {found:,} where {expected:,} were acknowledged")

    def messages(self, expected: Mapping[int, bytes], found: Iterable[ReadBackRow]) -> None:
        """Check that exactly the `expected` messages, by seq, were read, each once and in order."""
        self.order(rows := list(found))
        self.count("the range that was read", len(expected), len(rows))
        for row in rows:
            if row.seq not in expected:
                self._wrong(f"seq {row.seq} was never acknowledged")
            if expected[row.seq] != row.value:
                self._wrong(f"seq {row.seq} is {row.value[:20]!r}, not {expected[row.seq][:20]!r}")

    def order(self, rows: Sequence[ReadBackRow]) -> None:
        """Check that each message came once, in the order of seqs."""
        for before, after in pairwise(rows):
            if after.seq <= before.seq:
                self._wrong(f"seq {after.seq} came after seq {before.seq}")

    def entries(self, expected: Mapping[str, bytes], found: Mapping[str, bytes]) -> None:
        """Check that the kv has exactly the `expected` keys and values."""
        self.count("the kv", len(expected), len(found))
        for key, value in expected.items():
            if found.get(key) != value:
                self._wrong(f"key {key!r} is {found.get(key)!r:.40}, not {value[:20]!r}")

    def unique(self, seqs: Sequence[int]) -> None:
        """Check that no seq was acknowledged twice."""
        if len(set(seqs)) != len(seqs):
            self._wrong("one seq was acknowledged twice")

    def _wrong(self, reason: str) -> None:
        raise WrongReadBackError(side=self.side, work=self.work, reason=reason)

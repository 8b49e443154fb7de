"""Is what is read back what was stored? Pure; a benchmark whose answer is no has no numbers.

Everything raises WrongReadBackError, which names the side, the work and what was found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from holdfast.protocol.errors import HoldfastError


class WrongReadBackError(HoldfastError):
    """A side gave back something else than it acknowledged."""

    code = "wrong_read_back"
    template = "{side} gave back something else than was stored, in {work}: {reason}"


class ReadBackRow(NamedTuple):
    """A message as it was read."""

    seq: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Checker:
    """Checks one work of one side."""

    side: str
    work: str

    def count(self, what: str, expected: int, found: int) -> None:
        """A number of messages or keys."""
        if expected != found:
            self._wrong(f"{what} holds {found:,} where {expected:,} were acknowledged")

    def messages(self, expected: Mapping[int, bytes], found: Iterable[ReadBackRow]) -> None:
        """Exactly the `expected` messages, by seq, were read, each once and in order."""
        self.order(rows := list(found))
        self.count("the range that was read", len(expected), len(rows))
        for row in rows:
            if row.seq not in expected:
                self._wrong(f"seq {row.seq} was never acknowledged")
            if expected[row.seq] != row.value:
                self._wrong(f"seq {row.seq} is {row.value[:20]!r}, not {expected[row.seq][:20]!r}")

    def order(self, rows: Sequence[ReadBackRow]) -> None:
        """Messages came each once and in order of their seqs."""
        for before, after in pairwise(rows):
            if after.seq <= before.seq:
                self._wrong(f"seq {after.seq} came after seq {before.seq}")

    def entries(self, expected: Mapping[str, bytes], found: Mapping[str, bytes]) -> None:
        """Exactly the `expected` keys and values are there."""
        self.count("the kv", len(expected), len(found))
        for key, value in expected.items():
            if found.get(key) != value:
                self._wrong(f"key {key!r} is {found.get(key)!r:.40}, not {value[:20]!r}")

    def unique(self, seqs: Sequence[int]) -> None:
        """No seq was acknowledged for two messages."""
        if len(set(seqs)) != len(seqs):
            self._wrong("one seq was acknowledged twice")

    def _wrong(self, reason: str) -> None:
        raise WrongReadBackError(side=self.side, work=self.work, reason=reason)

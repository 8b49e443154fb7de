"""Exactly-once retries: what each writer of a store was last answered.

A client writer numbers its write groups per store, 1, 2, 3, ..., keeps a few in flight, and sends an
unanswered one again, unchanged. With each group comes its `floor`: the lowest number it still waits
for. The store keeps every outcome from the floor on, and always the last one. Hence

- a number that is known is answered with its first answer, and nothing is applied;
- the next number, or the floor itself when all below it was given up, is new;
- a number beyond that came before its predecessors (a frame was lost): refused, sent again later;
- a number below the floor was given up: its caller has been told "unknown", so that it must not be
  applied now, minutes later perhaps.

Pure. The rows behind it are `outcomes` in the store file and the outcomes in the commit log.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final


class Verdict(Enum):
    """What to do with a group."""

    #: Apply it.
    NEW = auto()
    #: Answer with the kept outcome.
    KNOWN = auto()
    #: Refuse: its predecessors have not arrived.
    GAP = auto()
    #: Refuse: it was given up.
    STALE = auto()


_NEW: Final = (Verdict.NEW, None)


@dataclass(slots=True)
class Writer:
    """The outcomes of one writer in one store. `last` is 0 while nothing of it is known."""

    last: int = 0
    floor: int = 0
    outcomes: dict[int, bytes] = field(default_factory=dict)

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[int, bytes]]) -> Writer:
        """Return the writer whose kept `(counter, outcome)` are `rows`."""
        outcomes = dict(rows)
        return cls(last=max(outcomes, default=0), floor=0, outcomes=outcomes)

    def judge(self, counter: int, floor: int) -> tuple[Verdict, bytes | None]:
        """Tell what to do with group `counter` and, if it is known, its outcome."""
        if counter == self.last + 1 and counter >= self.floor:
            return _NEW
        known = self.outcomes.get(counter)
        if known is not None:
            return Verdict.KNOWN, known
        if counter < max(self.floor, floor) or counter <= self.last:
            return Verdict.STALE, None
        if counter > max(self.last + 1, floor):
            return Verdict.GAP, None
        return Verdict.NEW, None

    def record(self, counter: int, floor: int, outcome: bytes) -> None:
        """Keep the outcome of a group that was just applied, and drop those below its floor."""
        outcomes = self.outcomes
        last = self.last
        outcomes[counter] = outcome
        if counter > last:
            self.last = counter
        if floor > self.floor:
            self.floor = floor
            keep_from = min(floor, self.last)
            if len(outcomes) == 2 and last < keep_from:
                # One writer, one group after the other: what most do.
                outcomes.pop(last, None)
                return
            for old in [number for number in outcomes if number < keep_from]:
                del outcomes[old]

    def forget(self, counter: int) -> None:
        """Take back the last `record`: the tick that it was part of has failed."""
        self.outcomes.pop(counter, None)
        if self.last == counter:
            self.last = counter - 1

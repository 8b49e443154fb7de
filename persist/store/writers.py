"""Exactly-once retries: the last answers that each writer of a store was given.

A client writer numbers its write groups per store, 1, 2, 3, ..., keeps a few in flight, and sends
an unanswered group again, unchanged. Each group carries the writer's `first_unacked`: the lowest
number it still waits for. The store keeps every outcome from `first_unacked` on, and always the
last one. Therefore:

- a known number gets its first answer again, and nothing is applied;
- the next number is new, and so is `first_unacked` itself when all below it were given up;
- a number beyond that came before its predecessors, because a frame was lost: it is refused, and
  the client sends it again later;
- a number below `first_unacked` was given up. Its caller was told "unknown", so it must not be
  applied now, perhaps minutes later;
- a number that was refused for good, because its tenant had used up its quota, counts as given up:
  memory keeps its answer for a copy that is on its way, and nothing durable does;
- a new number far above `first_unacked` is refused until `first_unacked` rises: a writer whose
  `first_unacked` never rises would make the store keep all its outcomes.

Pure. Behind it are the `outcomes` rows of the store file and the outcomes in the commit log.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from holdfast.protocol.limits import MAX_WRITER_OUTCOME_BYTES, MAX_WRITER_OUTCOMES


class Admission(Enum):
    """What to do with a group."""

    #: Apply it.
    NEW = auto()
    #: Answer with the kept outcome.
    KNOWN = auto()
    #: Refuse: its predecessors have not arrived.
    GAP = auto()
    #: Refuse: it was given up.
    STALE = auto()
    #: Refuse for now: too many outcomes would be kept for the writer.
    FULL = auto()


_NEW: Final = (Admission.NEW, None)
#: Up to this size of a writer's outcomes, answers that refuse are kept: a few dozen. Memory holds
#: them for a thousand writers of a store, invented ones too.
_MAX_REFUSED_BYTES: Final = 4096


@dataclass(slots=True)
class WriterState:
    """The outcomes of one writer in one store. `last` is 0 while none is known."""

    last: int = 0
    first_unacked: int = 0
    #: By counter, in ascending order.
    outcomes: dict[int, bytes] = field(default_factory=dict)
    #: The total of all outcomes.
    size_bytes: int = 0

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[int, bytes]]) -> WriterState:
        """Return a writer from its kept `(counter, outcome)` rows."""
        outcomes = dict(rows)
        size_bytes = sum(map(len, outcomes.values()))
        return cls(max(outcomes, default=0), 0, outcomes, size_bytes)

    def judge(self, counter: int, first_unacked: int) -> tuple[Admission, bytes | None]:
        """Tell what to do with group `counter`. If it is known, return its outcome too."""
        if counter == self.last + 1 and counter >= self.first_unacked:
            if counter - first_unacked < MAX_WRITER_OUTCOMES and (
                self.size_bytes <= MAX_WRITER_OUTCOME_BYTES
            ):
                return _NEW
            return self._judge_full(counter, first_unacked)
        known = self.outcomes.get(counter)
        if known is not None:
            return Admission.KNOWN, known
        if counter < max(self.first_unacked, first_unacked) or counter <= self.last:
            return Admission.STALE, None
        if counter > max(self.last + 1, first_unacked, self.first_unacked):
            return Admission.GAP, None
        return Admission.NEW, None

    def record(self, counter: int, first_unacked: int, outcome: bytes) -> None:
        """Keep the outcome of a group that was just applied, and drop those below
        its first_unacked."""
        outcomes = self.outcomes
        last = self.last
        outcomes[counter] = outcome
        self.size_bytes += len(outcome)
        if counter > last:
            self.last = counter
        if first_unacked > self.first_unacked:
            self.first_unacked = first_unacked
            keep_from = min(first_unacked, self.last)
            if len(outcomes) == 2 and last < keep_from:
                # The common case: one writer that sends one group after the other.
                self.size_bytes -= len(outcomes.pop(last, b""))
                return
            self._drop_below(keep_from)

    def refuse(self, counter: int, first_unacked: int, outcome: bytes) -> None:
        """Let a new group count as given up. Its answer is kept for other copies of it, unless the
        writer waits for much already; such a copy then hears that it is stale."""
        self._drop_below(min(first_unacked, self.last or first_unacked))
        if self.size_bytes + len(outcome) <= _MAX_REFUSED_BYTES:
            self.outcomes[counter] = outcome
            self.size_bytes += len(outcome)
        self.first_unacked = max(self.first_unacked, counter + 1)

    def _judge_full(self, counter: int, first_unacked: int) -> tuple[Admission, bytes | None]:
        """Judge a new group again after dropping the outcomes that the writer no
        longer waits for."""
        self._drop_below(min(first_unacked, self.last))
        if (
            counter - max(first_unacked, self.first_unacked) < MAX_WRITER_OUTCOMES
            and self.size_bytes <= MAX_WRITER_OUTCOME_BYTES
        ):
            return _NEW
        return Admission.FULL, None

    def _drop_below(self, keep_from: int) -> None:
        gone = []
        for number in self.outcomes:
            if number >= keep_from:
                break
            gone.append(number)
        for number in gone:
            self.size_bytes -= len(self.outcomes.pop(number))

    def forget(self, counter: int) -> None:
        """Undo the last `record`: its tick has failed."""
        self.size_bytes -= len(self.outcomes.pop(counter, b""))
        if self.last == counter:
            self.last = counter - 1

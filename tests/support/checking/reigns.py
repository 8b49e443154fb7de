"""A stream that gateways serve, one after the other: what it must hold, step by step.

Pure. A *reign* is the time of one serving epoch. Its gateway takes one step after the other and
gives up after one whose outcome it does not know, so each reign has at most one such step, the
last. What is possible is therefore a handful of states: those with that step, and those without. A
step or a read that fits none of them is wrong.

A read counts only if a write of the same reign succeeded later: that shows that nobody else had
begun to serve when it was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.protocol.subject_filters import matches
from tests.support.checking.history import Outcome

#: Config, state, and the data of the rows by seq.
Cursor = tuple[bytes, bytes, dict[int, bytes]]


class Refusal(Exception):
    """The owner must refuse a step: what it expects does not hold."""


@dataclass
class ServedState:
    """A stream: messages as `(subject, value)` by seq, and cursors by name."""

    messages: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    cursors: dict[str, Cursor] = field(default_factory=dict)
    last_seq: int = 0

    def copy(self) -> ServedState:
        return ServedState(dict(self.messages), dict(self.cursors), self.last_seq)

    def do(self, action: str, **arguments: Any) -> Any:
        """Take a step; return what it is answered. Raises Refusal."""
        answer: Any = getattr(self, f"_{action}")(**arguments)
        return answer

    def matching(self, filters: list[str], start_seq: int = 1) -> list[int]:
        return [
            seq
            for seq, (subject, _) in sorted(self.messages.items())
            if seq >= start_seq
            and (not filters or any(matches(each, subject) for each in filters))
        ]

    # Writes
    def _append(
        self, subject: str, value: bytes, expected: int | None = None, rollup: str | None = None
    ) -> int:
        if expected is not None and expected != max(self.matching([subject]), default=0):
            raise Refusal
        if rollup is not None:
            self._remove(self.matching([subject] if rollup == "sub" else []))
        self.last_seq += 1
        self.messages[self.last_seq] = (subject, value)
        return self.last_seq

    def _purge(self, filter_: str | None, before_seq: int | None, keep: int | None) -> int:
        seqs = self.matching([filter_] if filter_ else [])
        if before_seq is not None:
            seqs = [seq for seq in seqs if seq < before_seq]
        return self._remove(seqs[: len(seqs) - keep] if keep else seqs)

    def _delete(self, seqs: list[int]) -> int:
        return self._remove([seq for seq in seqs if seq in self.messages])

    def _cursor(
        self, name: str, state: bytes, rows: dict[int, bytes], removed: list[int]
    ) -> None:
        config, _, before = self.cursors.get(name, (b"", b"", {}))
        after = {**before, **rows}
        self.cursors[name] = (
            config,
            state,
            {seq: data for seq, data in after.items() if seq not in removed},
        )

    def _drop_cursor(self, name: str) -> bool:
        return self.cursors.pop(name, None) is not None

    def _batch(self, steps: list[tuple[str, dict[str, Any]]]) -> list[Any]:
        return [self.do(action, **arguments) for action, arguments in steps]

    # Reads
    def _read(self, filters: list[str], start_seq: int = 1) -> dict[int, tuple[str, bytes]]:
        return {seq: self.messages[seq] for seq in self.matching(filters, start_seq)}

    def _lasts(self, filters: list[str]) -> list[int]:
        last_of = {self.messages[seq][0]: seq for seq in self.matching(filters)}
        return sorted(last_of.values())

    def _subjects(self, filter_: str) -> list[tuple[str, int, int, int]]:
        found: dict[str, list[int]] = {}
        for seq in self.matching([filter_]):
            found.setdefault(self.messages[seq][0], []).append(seq)
        return [(each, len(seqs), seqs[0], seqs[-1]) for each, seqs in sorted(found.items())]

    def _count(self, filters: list[str], start_seq: int) -> int:
        return len(self.matching(filters, start_seq))

    def _all_cursors(self) -> dict[str, Cursor]:
        return self.cursors

    def _remove(self, seqs: list[int]) -> int:
        for seq in seqs:
            del self.messages[seq]
        return len(seqs)


READS = frozenset({"read", "lasts", "subjects", "count", "all_cursors"})


class Step(NamedTuple):
    """Something that a gateway asked for, and what it was answered."""

    action: str
    arguments: dict[str, Any]
    outcome: Outcome
    answer: Any = None

    def __str__(self) -> str:
        return f"{self.action} {self.arguments!r:.120}"


@dataclass
class Reign:
    """What one gateway did under one serving epoch."""

    epoch: int
    gateway: str
    steps: list[Step] = field(default_factory=list)

    @property
    def counted(self) -> list[Step]:
        """The steps without the reads that nothing proves."""
        writes = [
            index
            for index, step in enumerate(self.steps)
            if step.action not in READS and step.outcome is Outcome.OK
        ]
        proven = writes[-1] if writes else -1
        return [
            step
            for index, step in enumerate(self.steps)
            if step.action not in READS or index < proven
        ]


def check_reigns(reigns: Iterable[Reign]) -> Iterator[str]:
    """Yield what is wrong, as sentences."""
    possible = [ServedState()]
    previous: Reign | None = None
    for reign in sorted(reigns, key=lambda each: each.epoch):
        who = f"gateway {reign.gateway} of serving epoch {reign.epoch}"
        if previous is not None and previous.epoch == reign.epoch:
            yield f"{who}: so has {previous.gateway}"
        previous = reign
        for step in reign.counted:
            following, answers = _after(possible, step)
            if not following:
                yield f"{who}: {step} was answered {step.answer!r:.300}, not {answers!r:.300}"
                # What follows is judged by what should be.
                following = [_done(each, step)[0] or each for each in possible]
            possible = following


def _after(possible: list[ServedState], step: Step) -> tuple[list[ServedState], list[Any]]:
    """Return the states that are possible after a step, and what it could have been answered."""
    following: list[ServedState] = []
    answers: list[Any] = []
    for before in possible:
        after, answer = _done(before, step)
        answers.append("a refusal" if after is None else answer)
        if step.outcome is Outcome.OK:
            if after is not None and answer == step.answer:
                following.append(after)
        elif step.outcome is Outcome.REFUSED:
            # What is refused for another reason leaves no trace either.
            if after is None or step.answer != "wrong_last_seq":
                following.append(before)
        else:
            following += [before] if after in (None, before) else [before, after]
    return following, answers


def _done(before: ServedState, step: Step) -> tuple[ServedState | None, Any]:
    after = before.copy()
    try:
        answer = after.do(step.action, **step.arguments)
    except Refusal:
        return None, None
    return after, answer

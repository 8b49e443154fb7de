"""What a store has to be after what was acknowledged, in the order of the revisions.

Every write that changed something has one revision, or one for each of its parts, and no two writes
have the same: so what the writers were told, sorted, is the whole history of the store. Each step
is checked against the state that it was made on: conditions must have held, and what was said to be
there must have been. What followers and readers end with must be what the steps make.

What an owner removes by itself, for a roll-up or a limit, has a revision that no writer is told. A
follower saw it (`learn`), and it must have been due.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from holdfast.client import Change, ChangeKind
from tests.conformance.conforming import State

Key = int | str


class Step(NamedTuple):
    """One change: what was set, or which keys or seqs went and how many of them were there.

    `trim_to` is the seq up to which all went, or -1: everything. `expected` are the revisions that
    had to be those of keys or seqs before it (0: of none); of None the last seq.
    """

    value: tuple[Key, bytes] | None = None
    gone: tuple[Key, ...] = ()
    trim_to: int | None = None
    gone_count: int = 0
    expected: Mapping[Key | None, int] = MappingProxyType({})
    #: Of a message that was appended; one that is set keeps what it had.
    subject: str | None = None
    #: It is to replace the earlier messages of its subject.
    rolls_up: bool = False
    #: A filter, and the last seq that had to match it.
    expected_last: tuple[str, int] | None = None
    #: What a purge was asked for: a filter, its last seq or None, and how many to keep.
    purged: tuple[str, int | None, int] | None = None
    #: The owner did it by itself.
    by_itself: bool = False


class Read(NamedTuple):
    """What a reader found under a key: revision and value, or None. The revision `floor` had been
    acknowledged before it asked."""

    key: Key
    floor: int
    found: tuple[int, bytes] | None


class LastRead(NamedTuple):
    """What a reader found as the last message that matches a filter: seq and value, or None."""

    wanted: str
    floor: int
    found: tuple[int, bytes] | None


class Model:
    """The history of one store, gathered from the answers to its writers."""

    def __init__(self, max_per_subject: int | None = None) -> None:
        self.max_per_subject = max_per_subject
        self.steps: dict[int, Step] = {}
        self.reads: list[Read] = []
        self.last_reads: list[LastRead] = []
        #: What was stored under each msg_id: seq and revision.
        self.msg_ids: dict[str, tuple[int | None, int]] = {}
        #: The highest revision that was acknowledged.
        self.last = 0

    def add(self, revision: int, step: Step) -> None:
        """Note what was acknowledged with `revision`."""
        assert revision not in self.steps, f"{self.steps[revision]} and {step} both are {revision}"
        self.steps[revision] = step
        self.last = max(self.last, revision)

    def learn(self, changes: Iterable[Change]) -> None:
        """Note what the owner removed by itself, as a follower saw it that missed nothing."""
        for change in changes:
            if change.revision not in self.steps and change.kind in _REMOVALS:
                trim_to = change.end_seq if change.kind is ChangeKind.TRIM else None
                self.steps[change.revision] = Step(
                    gone=change.seqs, trim_to=trim_to, by_itself=True
                )

    def state(self, revision: int) -> State:
        """Return the state at `revision`, the last one; every step up to there, and every read,
        checked."""
        assert sorted(self.steps) == list(range(1, revision + 1)), "a revision that nobody wrote"
        state: State = {}
        subjects = _Subjects(state, self.max_per_subject)
        open_reads = list(self.last_reads)
        revisions: dict[Key, int] = {}
        #: Of each key what it was, from which revision on.
        history: defaultdict[Key, list[tuple[int, bytes | None]]] = defaultdict(lambda: [(0, None)])
        last_seq = 0
        for number in range(1, revision + 1):
            step = self.steps[number]
            for key, expected in step.expected.items():
                actual = last_seq if key is None else revisions.get(key, 0)
                assert actual == expected, f"{number}: {step}, but {key} was {actual}"
            gone = subjects.gone(number, step)
            if step.purged is not None:
                # For `check`: writers are not told which messages a purge removes.
                self.steps[number] = step._replace(gone=tuple(gone))
            if step.value is not None:
                key, value = step.value
                subjects.set(key, step)
                state[key], revisions[key] = value, number
                history[key].append((number, value))
                if isinstance(key, int):
                    assert key <= last_seq + 1, f"{number}: {step} leaves a hole"
                    last_seq = max(last_seq, key)
            for key in gone:
                del state[key], revisions[key]
                history[key].append((number, None))
            open_reads = [read for read in open_reads if not subjects.was_so(number, read)]
        for read in self.reads:
            assert _was_so(read, history[read.key]), f"{read}: {history[read.key]}"
        assert not open_reads, open_reads[0]
        subjects.check_all_done()
        return state

    def check(self, change: Change) -> None:
        """Check one change that a follower saw."""
        step = self.steps[change.revision]
        row = change.message or change.entry
        if row is not None:
            key = change.message.seq if change.message is not None else change.entry.key  # type: ignore[union-attr]
            assert (key, row.value) == step.value
            assert row.revision == change.revision
        elif change.kind is ChangeKind.DELETE:
            assert set(change.seqs or change.keys) <= set(step.gone)
        elif change.kind is ChangeKind.TRIM and step.purged is not None:
            assert change.end_seq >= max(key for key in step.gone if isinstance(key, int))
        elif change.kind is ChangeKind.TRIM:
            assert step.trim_to in (-1, change.end_seq)


def _was_so(read: Read, history: list[tuple[int, bytes | None]]) -> bool:
    """Tell if the key was as it was read at some revision from `floor` on."""
    ends = [revision for revision, _ in history[1:]]
    for (revision, value), end in zip(history, [*ends, None], strict=True):
        is_it = value is None if read.found is None else (revision, value) == read.found
        if is_it and (end is None or end > read.floor):
            return True
    return False


_REMOVALS = (ChangeKind.DELETE, ChangeKind.TRIM)


class _Subjects:
    """The subjects of the messages of a state, and what the owner has to remove by itself."""

    def __init__(self, state: State, limit: int | None) -> None:
        self._state = state
        self._limit = limit
        self._of: dict[Key, str | None] = {}
        #: The seqs that roll-ups stand for and that are still there.
        self._due: set[Key] = set()

    def gone(self, number: int, step: Step) -> list[Key]:
        """Return what a step removes, checked; before it is carried out."""
        if step.expected_last is not None:
            wanted, expected = step.expected_last
            actual = max(self._matching(wanted), default=0)
            assert actual == expected, f"{number}: {step}, but the last was {actual}"
        if step.purged is not None:
            wanted, end_seq, keep = step.purged
            matching = sorted(self._matching(wanted))
            gone: list[Key] = [
                seq
                for seq in matching[: len(matching) - keep]
                if end_seq is None or seq <= end_seq
            ]
        else:
            gone = [key for key in self._state if _goes(key, step)]
        if step.by_itself:
            newest = self._newest()
            for key in gone:
                is_due = key in self._due or (self._of.get(key) and key not in newest)
                assert is_due, f"{number}: {key} need not go"
        else:
            assert step.value or len(gone) == step.gone_count, f"{number}: {step}, but {gone}"
        self._due -= set(gone)
        return gone

    def set(self, key: Key, step: Step) -> None:
        """A message is set."""
        if step.subject is not None:
            self._of[key] = step.subject
        elif key not in self._state:
            self._of[key] = None
        if step.rolls_up:
            assert step.subject is not None
            self._due |= set(self._matching(step.subject)) - {key}

    def was_so(self, number: int, read: LastRead) -> bool:
        """Tell if a reader may have found this now."""
        last = max(self._matching(read.wanted), default=None)
        found = None if last is None else (last, self._state[last])
        return number >= read.floor and found == read.found

    def check_all_done(self) -> None:
        """Check that nothing is left that had to go."""
        assert not self._due, f"{self._due} are still there"
        if self._limit is not None:
            over = {seq for seq in self._state if self._of.get(seq)} - self._newest()
            assert not over, f"{over} are beyond the limit"

    def _newest(self) -> set[Key]:
        """Return the messages that the limit of their subject leaves."""
        by_subject: defaultdict[str | None, list[int]] = defaultdict(list)
        for seq in self._matching(">"):
            by_subject[self._of[seq]].append(seq)
        limit = self._limit or len(self._state)
        return {seq for seqs in by_subject.values() for seq in sorted(seqs)[-limit:]}

    def _matching(self, wanted: str) -> list[int]:
        tokens = ({"*": "[^.]+", ">": ".+"}.get(each, each) for each in wanted.split("."))
        pattern = re.compile(r"\.".join(tokens))
        return [
            seq
            for seq in self._state
            if isinstance(seq, int) and pattern.fullmatch(self._of.get(seq) or "")
        ]


def _goes(key: Key, step: Step) -> bool:
    if step.trim_to is None:
        return key in step.gone
    return step.trim_to == -1 or (isinstance(key, int) and key <= step.trim_to)

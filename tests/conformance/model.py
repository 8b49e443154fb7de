"""What a store has to be after what was acknowledged, in the order of the revisions.

Every write that changed something has one revision, or one for each of its parts, and no two writes
have the same: so what the writers were told, sorted, is the whole history of the store. Each step
is checked against the state that it was made on: conditions must have held, and what was said to be
there must have been. What followers and readers end with must be what the steps make.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
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


class Read(NamedTuple):
    """What a reader found under a key: revision and value, or None. The revision `floor` had been
    acknowledged before it asked."""

    key: Key
    floor: int
    found: tuple[int, bytes] | None


class Model:
    """The history of one store, gathered from the answers to its writers."""

    def __init__(self) -> None:
        self.steps: dict[int, Step] = {}
        self.reads: list[Read] = []
        #: What was stored under each msg_id: seq and revision.
        self.msg_ids: dict[str, tuple[int | None, int]] = {}
        #: The highest revision that was acknowledged.
        self.last = 0

    def add(self, revision: int, step: Step) -> None:
        """Note what was acknowledged with `revision`."""
        assert revision not in self.steps, f"{self.steps[revision]} and {step} both are {revision}"
        self.steps[revision] = step
        self.last = max(self.last, revision)

    def state(self, revision: int) -> State:
        """Return the state at `revision`, the last one; every step up to there, and every read,
        checked."""
        assert sorted(self.steps) == list(range(1, revision + 1)), "a revision that nobody wrote"
        state: State = {}
        revisions: dict[Key, int] = {}
        #: Of each key what it was, from which revision on.
        history: defaultdict[Key, list[tuple[int, bytes | None]]] = defaultdict(lambda: [(0, None)])
        last_seq = 0
        for number in range(1, revision + 1):
            step = self.steps[number]
            for key, expected in step.expected.items():
                actual = last_seq if key is None else revisions.get(key, 0)
                assert actual == expected, f"{number}: {step}, but {key} was {actual}"
            if step.value is not None:
                key, value = step.value
                state[key], revisions[key] = value, number
                history[key].append((number, value))
                if isinstance(key, int):
                    assert key <= last_seq + 1, f"{number}: {step} leaves a hole"
                    last_seq = max(last_seq, key)
                continue
            gone = [key for key in state if _goes(key, step)]
            assert len(gone) == step.gone_count, f"{number}: {step}, but {gone} were there"
            for key in gone:
                del state[key], revisions[key]
                history[key].append((number, None))
        for read in self.reads:
            assert _was_so(read, history[read.key]), f"{read}: {history[read.key]}"
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


def _goes(key: Key, step: Step) -> bool:
    if step.trim_to is None:
        return key in step.gone
    return step.trim_to == -1 or (isinstance(key, int) and key <= step.trim_to)

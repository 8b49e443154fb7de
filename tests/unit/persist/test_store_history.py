"""Random histories of a store, its file and its log, against a plain dict."""

from __future__ import annotations

import copy
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.persist.operations import reads
from holdfast.persist.store.store import Store
from holdfast.protocol import frames
from holdfast.protocol.changes import (
    CHANGE_DELETE_ENTRIES,
    CHANGE_DELETE_MESSAGES,
    CHANGE_SET_ENTRY,
    CHANGE_SET_MESSAGE,
    CHANGE_TRIM,
)
from holdfast.protocol.names import StoreKind
from tests.support.effort import examples
from tests.support.ticked_store import Bench

APPEND, SET, DELETE, TRIM = 1, 2, 3, 4
SET_ENTRY, DELETE_ENTRIES, CLEAR, BATCH = 5, 6, 7, 8


def headers_bytes(headers: dict[str, str] | None) -> int:
    return len(frames.pack(headers)) if headers else 0


class Refused(Exception):
    """The model refuses, with this code."""


@dataclass
class Model:
    """What a store should hold: rows are `(revision, time, value, headers)` by seq or key."""

    rows: dict[Any, tuple[int, int, bytes, dict[str, str] | None]] = field(default_factory=dict)
    revision: int = 0
    last_seq: int = 0
    msg_ids: dict[str, list[Any]] = field(default_factory=dict)

    def head(self) -> list[int]:
        size_bytes = sum(
            len(row[2]) + headers_bytes(row[3]) + (len(key.encode()) if type(key) is str else 0)
            for key, row in self.rows.items()
        )
        return [self.revision, self.last_seq, len(self.rows), size_bytes]

    def execute(self, operation: list[Any], time: int) -> list[Any]:
        kept = copy.copy(self)
        kept.rows, kept.msg_ids = dict(self.rows), dict(self.msg_ids)
        try:
            if operation[0] == BATCH:
                return [self._one(member, time) for member in operation[1]]
            return self._one(operation, time)
        except Refused as refused:
            self.__dict__.update(kept.__dict__)
            return [str(refused)]

    def _one(self, operation: list[Any], time: int) -> list[Any]:
        number, *arguments = operation
        if number == APPEND:
            value, headers, msg_id, expected = arguments
            if msg_id in self.msg_ids:
                return [*self.msg_ids[msg_id], True]
            if expected is not None and expected != self.last_seq:
                raise Refused("wrong_last_seq")
            self.last_seq += 1
            self._set(self.last_seq, value, headers, time)
            if msg_id is not None:
                self.msg_ids[msg_id] = [self.last_seq, self.revision, time]
            return [self.last_seq, self.revision]
        if number == SET:
            seq, value, headers = arguments
            if not 1 <= seq <= self.last_seq + 1:
                raise Refused("invalid_seq")
            self.last_seq = max(self.last_seq, seq)
            self._set(seq, value, headers, time)
            return [seq, self.revision]
        if number == DELETE:
            if not all(seq >= 1 for seq in arguments[0]):
                raise Refused("invalid_seq")
            return self._remove(set(arguments[0]))
        if number == frames.EXPECT:
            key, expected = arguments
            if key is None and expected != self.last_seq:
                raise Refused("wrong_last_seq")
            if key is not None:
                self._check_revision(key, expected)
            return [self.revision]
        if number == TRIM:
            end_seq = self.last_seq if arguments[0] is None else arguments[0]
            return self._remove({seq for seq in self.rows if seq <= end_seq})
        if number == SET_ENTRY:
            key, value, headers, expected = arguments
            self._check_revision(key, expected)
            self._set(key, value, headers, time)
            return [0, self.revision]
        if number == DELETE_ENTRIES:
            for key in arguments[0]:
                self._check_revision(key, arguments[1])
            return self._remove(set(arguments[0]))
        return self._remove(set(self.rows))

    def _check_revision(self, key: Any, expected: int | None) -> None:
        actual = self.rows[key][0] if key in self.rows else 0
        if expected is not None and expected != actual:
            raise Refused("wrong_revision")

    def _set(self, key: Any, value: bytes, headers: dict[str, str] | None, time: int) -> None:
        self.revision += 1
        self.rows[key] = (self.revision, time, value, headers or None)

    def _remove(self, keys: set[Any]) -> list[Any]:
        present = keys & self.rows.keys()
        for key in present:
            del self.rows[key]
        self.revision += bool(present)
        return [len(present), self.revision]


def follow(rows: dict[Any, Any], changes: list[Any]) -> None:
    """Apply changes as a follower does."""
    for revision, time, (number, *change) in changes:
        if number in (CHANGE_SET_MESSAGE, CHANGE_SET_ENTRY):
            headers = change[2] if len(change) > 2 else None
            rows[change[0]] = (revision, time, change[1], headers or None)
        elif number in (CHANGE_DELETE_MESSAGES, CHANGE_DELETE_ENTRIES):
            for key in change[0]:
                rows.pop(key, None)
        elif number == CHANGE_TRIM:
            for seq in [seq for seq in rows if seq <= change[0]]:
                del rows[seq]
        else:
            rows.clear()


SMALL_VALUES = st.binary(max_size=4) | st.just(bytes(300))
HEADERS = st.none() | st.dictionaries(st.sampled_from("ab"), st.text(max_size=3), max_size=2)
#: Mostly ones that are there: a history of refusals proves little.
SEQS = st.integers(1, 7) | st.integers(1, 7) | st.integers(-1, 14)
KEYS = st.sampled_from(["", "a", "ab", "a\x00", "b", "🪸", "a\U0010ffff"])
APPENDS = st.tuples(
    st.just(APPEND), SMALL_VALUES, HEADERS, st.none() | st.sampled_from("xyz"),
    st.sampled_from([None] * 9 + [0, 1, 2]),
)  # fmt: skip
CONDITIONS = st.sampled_from([0, 0, 1, 2, 3, 4, 5, 6])
EXPECTED_REVISIONS = st.sampled_from([None] * 6 + [0, 0, 1, 2, 3])
STREAM_MEMBERS = (
    APPENDS
    | APPENDS
    | st.tuples(st.just(SET), SEQS, SMALL_VALUES, HEADERS)
    | st.tuples(st.just(DELETE), st.lists(SEQS | st.integers(1, 4), max_size=3))
    | st.tuples(st.just(frames.EXPECT), SEQS | st.none(), CONDITIONS)
).map(list)
KV_MEMBERS = (
    st.tuples(st.just(SET_ENTRY), KEYS, SMALL_VALUES, HEADERS, EXPECTED_REVISIONS)
    | st.tuples(st.just(SET_ENTRY), KEYS, SMALL_VALUES, HEADERS, EXPECTED_REVISIONS)
    | st.tuples(st.just(DELETE_ENTRIES), st.lists(KEYS, max_size=3), EXPECTED_REVISIONS)
    | st.tuples(st.just(frames.EXPECT), KEYS, CONDITIONS)
).map(list)
WRITES = {
    StoreKind.STREAM: STREAM_MEMBERS
    | STREAM_MEMBERS
    | st.tuples(st.just(TRIM), st.integers(0, 4) | st.none()).map(list)
    | st.lists(STREAM_MEMBERS, min_size=1, max_size=4).map(lambda members: [BATCH, members]),
    StoreKind.KV: KV_MEMBERS
    | KV_MEMBERS
    | st.just([CLEAR])
    | st.lists(KV_MEMBERS, min_size=1, max_size=4).map(lambda members: [BATCH, members]),
}


class StoreHistory(RuleBasedStateMachine):
    """One store through ticks that commit or fail, lagging files, crashes and new owners."""

    @initialize(kind=st.sampled_from(StoreKind))
    def begin(self, kind: StoreKind) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="holdfast-"))
        self.bench = Bench(self.directory, kind)
        self.model = Model()
        self.committed = Model()
        #: The model after each committed tick.
        self.after_tick: dict[int, Model] = {0: Model()}
        self.in_file = 0

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.close()
            shutil.rmtree(self.directory)

    @property
    def store(self) -> Store:
        return self.bench.store

    def read_file(self, *operation: Any) -> Any:
        """What a read is answered from the file as it is, which may lag."""
        return reads.execute(self.store, "s1", [list(operation)])[0]

    @rule(data=st.data(), passed=st.integers(0, 9))
    def write(self, data: st.DataObject, passed: int) -> None:
        self.bench.time += passed if self.store.mark is None else 0
        for operation in data.draw(st.lists(WRITES[self.store.kind], min_size=1, max_size=6)):
            expected = self.model.execute(operation, self.bench.time)
            result = self.bench.execute(operation)[0]
            assert (result[:1] if type(result[0]) is str else result) == expected
            self.counters_are_the_models()

    @precondition(lambda self: self.store.mark is not None)
    @rule()
    def commit(self) -> None:
        self.bench.commit()
        self.committed = copy.deepcopy(self.model)
        self.after_tick[self.bench.number] = self.committed

    @precondition(lambda self: self.store.mark is not None)
    @rule()
    def fail(self) -> None:
        self.store.fail_tick()
        self.model = copy.deepcopy(self.committed)

    @rule(data=st.data())
    def materialise(self, data: st.DataObject) -> None:
        synced = st.integers(self.in_file, self.bench.number)
        self.in_file = data.draw(synced | st.just(self.bench.number), label="synced tick")
        self.store.materialise(self.in_file)
        self.check_file()

    @precondition(lambda self: self.store.file is not None)
    @rule(crash=st.booleans())
    def reopen(self, crash: bool) -> None:
        """A new owner: after a clean close, or from what a killed one left in file and log."""
        if self.store.mark is not None:
            self.fail()
        found = self.bench.fail_over(crash=crash)
        assert crash or not found.batches
        self.in_file = self.bench.number
        self.check_file()

    @precondition(lambda self: self.store.file is not None)
    @rule(data=st.data(), limit=st.integers(1, 5) | st.none())
    def follow_changes(self, data: st.DataObject, limit: int | None) -> None:
        """A follower at any earlier state, also at none, comes to the present one in any pages."""
        tick = data.draw(st.integers(0, self.in_file), label="follower's tick")
        seen = self.after_tick[tick]
        rows, revision, seq = dict(seen.rows), seen.revision, seen.last_seq
        state_revision = None
        for _ in range(1000):
            wanted = [frames.CHANGES, revision, seq, limit, state_revision]
            page, next_revision, next_seq, head, reset = self.read_file(*wanted)
            assert not reset
            assert [change[0] for change in page] == sorted(change[0] for change in page)
            assert all(change[0] > revision for change in page)
            follow(rows, page)
            if seen.revision == 0 and state_revision is None:
                state_revision = head
            revision, seq = next_revision, next_seq
            if revision == head:
                break
        assert revision == self.after_tick[self.in_file].revision
        assert rows == self.after_tick[self.in_file].rows

    @precondition(lambda self: self.store.file is not None)
    @rule(data=st.data(), limit=st.integers(1, 4) | st.none())
    def read_in_pages(self, data: st.DataObject, limit: int | None) -> None:
        model = self.after_tick[self.in_file]
        found: list[Any] = []
        if self.store.kind is StoreKind.STREAM:
            start, end = data.draw(SEQS), data.draw(st.none() | SEQS)
            last = data.draw(st.none() | st.integers(0, 5))
            expected = [key for key in sorted(model.rows) if end is None or key <= end]
            if last is not None:
                expected = expected[-last:] if last else []
            expected = [key for key in expected if start <= key]
            wanted = [frames.GET_MESSAGES, start, end, None, limit, last]
            while True:
                page, after = self.read_file(*wanted)
                found += page
                if after is None:
                    break
                wanted = [frames.GET_MESSAGES, after, end, None, limit]
        else:
            prefix = data.draw(KEYS)
            expected = [k for k in sorted(model.rows, key=str.encode) if k.startswith(prefix)]
            after = None
            while True:
                page, after = self.read_file(frames.GET_ENTRIES, prefix, after, limit)
                found += page
                if after is None:
                    break
        assert [row[0] for row in found] == expected
        for row in found:
            assert self.as_model(row) == model.rows[row[0]]

    @staticmethod
    def as_model(row: Any) -> tuple[Any, ...]:
        return row[1], row[2], row[3], row[4] or None

    def check_file(self) -> None:
        """The file holds exactly what the model held after the last tick that it has."""
        model = self.after_tick[self.in_file]
        file = self.store.file
        if file is None:
            assert model.revision == 0
            return
        meta = file.meta
        assert [meta.revision, meta.last_seq, meta.count, meta.bytes] == model.head()
        head = self.read_file(frames.HEAD)
        assert [head[0], *head[2:5]] == model.head()
        keys: list[Any] = list(range(16)) if self.store.kind is StoreKind.STREAM else ["zz"]
        get = 32 if self.store.kind is StoreKind.STREAM else frames.GET_ENTRY
        if self.store.kind is StoreKind.STREAM:
            assert head[1] == min(model.rows, default=model.last_seq + 1)
        for key in {*keys, *model.rows}:
            row = self.read_file(get, key)
            assert (self.as_model(row) if row else None) == model.rows.get(key)

    @invariant()
    def counters_are_the_models(self) -> None:
        if not hasattr(self, "bench"):
            return
        store = self.store
        store.validate()
        assert [store.revision, store.last_seq, store.count, store.bytes] == self.model.head()


TestStoreHistory = StoreHistory.TestCase
TestStoreHistory.settings = settings(
    deadline=None, max_examples=examples(80), stateful_step_count=40
)

"""Reads of what a stream's file lacks yet, answered from memory."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.persist.operations import reads
from holdfast.persist.operations.read_rows import ROW_BYTES, ReadBounds
from holdfast.persist.tail import tail_reads
from holdfast.persist.tail.tail_reads import TailBounds
from holdfast.protocol import frames
from holdfast.protocol.names import StoreKind
from holdfast.shared_fs.encryption.store_cipher import StoreCipher
from tests.support.effort import tries
from tests.support.stores import file_of
from tests.support.ticked_store import Bench

#: Small pages, so that there are several.
_ROWS, _BYTES = 3, 400
BOUNDS = ReadBounds(page_rows=_ROWS, page_bytes=_BYTES)


def of_tail(bench: Bench, operations: list[list[Any]], synced: int) -> list[Any] | None:
    tail = bench.store.tail(synced)
    if tail is None:
        return None
    bounds = TailBounds(*BOUNDS, ROW_BYTES)
    return tail_reads.answers(file_of(bench.store), tail, operations, bounds)


def of_file(bench: Bench, operations: list[list[Any]], synced: int) -> list[Any]:
    """What the file answers with all that is synced in it; nothing stays in it."""
    with bench.store.previewed(synced):
        return reads.execute(bench.store, "s1", operations, bounds=BOUNDS)


def wire(value: Any) -> Any:
    return frames.unpack(frames.pack(value))


def all_pages(answer: Any, operation: list[Any]) -> list[Any]:
    """The rows of every page of a GET_MESSAGES, each asked for as a client does."""
    rows: list[Any] = []
    limit = operation[4] if len(operation) > 4 else None
    asked = list(operation) + [None] * (6 - len(operation))
    while True:
        [[page, next_seq]] = wire(answer([asked]))
        rows += page
        if next_seq is None or (limit is not None and len(rows) >= limit):
            return rows
        assert page, "a page that is not the last one has a row"
        left = None if limit is None else limit - len(rows)
        asked = [frames.GET_MESSAGES, next_seq, operation[2], None, left, None]


_seqs = st.integers(0, 14)


class TailModel(RuleBasedStateMachine):
    """A stream is written in every way; whatever a tail answers is what the file would."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="holdfast-tail-"))
        self.bench = Bench(self.root, StoreKind.STREAM)
        #: The last tick that is synced.
        self.synced = 0
        #: Whether ticks wait for a sync.
        self.lags = False

    def teardown(self) -> None:
        self.bench.close()
        shutil.rmtree(self.root)

    @initialize(count=st.integers(1, 3), subjects=st.booleans())
    def begin(self, count: int, subjects: bool) -> None:
        for number in range(count):
            self._append(b"first%d" % number, None, "s.0" if subjects else None, None)
        self.bench.materialise()
        self.synced = self.bench.number

    def _append(self, value: bytes, headers: Any, subject: str | None, ttl: float | None) -> None:
        self.bench.tick(
            [frames.APPEND, value, headers, None, None, ttl, subject, None, None]
        )

    @rule(
        count=st.integers(1, 4),
        size=st.sampled_from([0, 1, 90, 500]),
        headers=st.sampled_from([None, {"a": "b"}, {"a": ["b", "c"]}]),
        subject=st.sampled_from([None, None, "s.1"]),
        ttl=st.sampled_from([None, None, 60.0]),
    )
    def append(self, count: int, size: int, headers: Any, subject: Any, ttl: Any) -> None:
        for _ in range(count):
            self.bench.time += 1
            self._append(b"x" * size, headers, subject, ttl)

    @rule(count=st.integers(2, 6))
    def append_many(self, count: int) -> None:
        self.bench.tick(*([frames.APPEND, b"y%d" % number] for number in range(count)))

    @rule(seq=_seqs)
    def delete(self, seq: int) -> None:
        self.bench.tick([frames.DELETE_MESSAGES, [seq]])

    @rule(seq=_seqs)
    def replace(self, seq: int) -> None:
        if 0 < seq <= self.bench.store.last_seq:
            self.bench.tick([frames.SET_MESSAGE, seq, b"replaced"])

    @rule(seq=_seqs)
    def trim(self, seq: int) -> None:
        self.bench.tick([frames.TRIM, seq])

    @rule()
    def fail(self) -> None:
        self.bench.tick([frames.APPEND, b"taken back"], commit=False)

    @rule()
    def expire(self) -> None:
        self.bench.time += 61_000
        self.bench.tick()

    @rule(limit=st.sampled_from([None, 4]))
    def configure(self, limit: int | None) -> None:
        self.bench.tick([frames.CONFIGURE, {"max_messages": limit}])

    @rule(lags=st.booleans())
    def sync(self, lags: bool) -> None:
        self.lags = lags

    @rule()
    def materialise(self) -> None:
        self.bench.store.materialise(self.synced)

    @rule()
    def apply_some(self) -> None:
        self.bench.store.materialise_some(self.synced, 2, 100)

    @rule()
    def reopen(self) -> None:
        self.bench.reopen()
        self.synced = self.bench.number

    @rule(
        start=_seqs,
        end=st.none() | _seqs,
        limit=st.none() | st.integers(1, 9),
        last=st.none() | st.integers(1, 5),
    )
    def read(self, start: int, end: int | None, limit: int | None, last: int | None) -> None:
        operation = [frames.GET_MESSAGES, start, end, None, limit, last]
        if of_tail(self.bench, [operation], self.synced) is None:
            return
        def answered(operations: list[list[Any]]) -> Any:
            found = of_tail(self.bench, operations, self.synced)
            return found if found is not None else of_file(self.bench, operations, self.synced)

        assert all_pages(answered, operation) == all_pages(
            lambda operations: of_file(self.bench, operations, self.synced), operation
        )

    @rule(seqs=st.lists(_seqs, min_size=1, max_size=4), run=st.integers(1, 5))
    def read_some(self, seqs: list[int], run: int) -> None:
        wanted = [
            *([frames.GET_MESSAGE, seq] for seq in seqs),
            [frames.GET_SEQS, list(range(seqs[0], seqs[0] + run))],
            [frames.GET_SEQS, seqs],
        ]
        for operation in wanted:
            found = of_tail(self.bench, [operation], self.synced)
            if found is not None:
                assert wire(found) == wire(of_file(self.bench, [operation], self.synced))
        together = of_tail(self.bench, wanted[: len(seqs)], self.synced)
        if together is not None:
            assert wire(together) == wire(of_file(self.bench, wanted[: len(seqs)], self.synced))

    @invariant()
    def answers_as_the_file(self) -> None:
        if not self.lags:
            self.synced = self.bench.number
        for seq in range(self.bench.store.last_seq + 2):
            operation = [frames.GET_MESSAGE, seq]
            found = of_tail(self.bench, [operation], self.synced)
            if found is not None:
                assert wire(found) == wire(of_file(self.bench, [operation], self.synced))

    @invariant()
    def is_of_the_pending_ticks(self) -> None:
        tail = self.bench.store.pending.tail
        if tail is not None and tail.appends_only:
            assert tail.first_seq == file_of(self.bench.store).meta.last_seq + 1
            assert [row[0] for row in tail.rows] == list(range(tail.first_seq, tail.next_seq))


TailModel.TestCase.settings = settings(
    max_examples=tries(20, 60, 400), stateful_step_count=30, deadline=None
)
TestTail = TailModel.TestCase


def filled(root: Path) -> Bench:
    bench = Bench(root, StoreKind.STREAM)
    bench.tick([frames.APPEND, b"old"])
    bench.materialise()
    return bench


def test_a_reader_at_the_tail_writes_nothing_to_the_file(tmp_path: Path) -> None:
    bench = filled(tmp_path)
    for number in range(2, 50):
        bench.tick([frames.APPEND, b"new"])
        [row] = of_tail(bench, [[frames.GET_MESSAGE, number]], bench.number) or []
        assert row[:1] + row[3:4] == (number, b"new")
    assert file_of(bench.store).meta.last_seq == 1
    assert len(bench.store.pending.ticks) == 48
    bench.close()


def test_what_is_not_synced_is_not_shown(tmp_path: Path) -> None:
    bench = filled(tmp_path)
    bench.tick([frames.APPEND, b"synced"])
    synced = bench.number
    bench.tick([frames.APPEND, b"not yet"])
    assert of_tail(bench, [[frames.GET_MESSAGE, 2]], synced) not in (None, [None])
    assert of_tail(bench, [[frames.GET_MESSAGE, 3]], synced) == [None]
    assert of_tail(bench, [[frames.GET_MESSAGE, 3]], bench.number) not in (None, [None])
    bench.close()


def test_any_change_but_an_append_leaves_the_read_to_the_file(tmp_path: Path) -> None:
    for change in (
        [frames.DELETE_MESSAGES, [1]],
        [frames.TRIM, 1],
        [frames.SET_MESSAGE, 1, b"other"],
        [frames.CONFIGURE, {"max_messages": 5}],
    ):
        root = tmp_path / str(change[0])
        root.mkdir()
        bench = filled(root)
        bench.tick([frames.APPEND, b"new"])
        assert of_tail(bench, [[frames.GET_MESSAGE, 2]], bench.number) is not None
        bench.tick(change)
        assert of_tail(bench, [[frames.GET_MESSAGE, 2]], bench.number) is None
        bench.materialise()
        bench.tick([frames.APPEND, b"newer"])
        last = bench.store.last_seq
        assert of_tail(bench, [[frames.GET_MESSAGE, last]], bench.number) is not None
        bench.close()


def test_what_waits_in_an_encrypted_stream_is_never_shown_as_it_is(tmp_path: Path) -> None:
    bench = filled(tmp_path)
    bench.tick([frames.APPEND, b"new"])
    bench.store.cipher = cast(StoreCipher, object())
    assert bench.store.tail(bench.number) is None
    bench.close()


def test_a_store_that_nobody_reads_keeps_no_rows(tmp_path: Path) -> None:
    bench = filled(tmp_path)
    bench.tick([frames.APPEND, b"new"])
    assert bench.store.pending.tail is None
    of_tail(bench, [[frames.GET_MESSAGE, 2]], bench.number)
    assert bench.store.pending.tail is not None
    bench.materialise()
    assert bench.store.pending.tail is None
    assert bench.store.tail(bench.number) is None
    bench.close()

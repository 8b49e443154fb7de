"""A store in memory: what waits for the file, and what a failure of the file leaves."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.persist.store import memtable
from holdfast.persist.store.change_sizes import bytes_of, entry_bytes_of, message_bytes_of
from holdfast.persist.store.memtable import Memtable
from holdfast.persist.store.store import Store
from holdfast.protocol import frames
from holdfast.protocol.changes import CHANGE_SET_MESSAGE
from holdfast.protocol.errors import StorageFailedError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.store_file.applying import WriterOutcome
from holdfast.shared_fs.store_file.schema import PAGE_BYTES
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.collection import without_collection
from tests.support.effort import examples
from tests.support.stores import abandon, file_of, kv_id, store_of, stream_id

STREAM = StoreId("acme", StoreKind.STREAM, "a")


class Bench:
    """A stream whose file can refuse to be made or written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.refuse = False
        self.store = Store(STREAM, 1, None, self.create)

    def create(self, page_bytes: int = PAGE_BYTES) -> StoreFile:
        if self.refuse:
            raise StorageFailedError(reason="full")
        return StoreFile.create(self.path, STREAM, time=1, page_bytes=page_bytes)

    def append(self, tick: int, segment: int = 1, value: bytes = b"v") -> None:
        store = self.store
        store.begin()
        seq = store.last_seq + 1
        store.set_message(seq, len(value), [CHANGE_SET_MESSAGE, seq, value])
        store.outcomes.append(WriterOutcome(b"w", tick, tick, 1, b"o"))
        store.writer(b"w").record(tick, tick, b"o")
        store.finish_tick(tick, segment)
        store.validate()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "db")
    yield bench
    abandon(bench.store)


def test_a_store_that_nobody_wrote_makes_no_file(bench: Bench) -> None:
    bench.store.materialise(100)
    assert not bench.path.exists()
    assert bench.store.contents.message_bytes(1) is None
    assert bench.store.oldest_segment is None


def test_a_file_that_cannot_be_made_leaves_everything_pending(bench: Bench) -> None:
    bench.append(1)
    bench.append(2)
    bench.refuse = True
    with pytest.raises(StorageFailedError):
        bench.store.materialise(2)
    bench.store.validate()
    assert len(bench.store.pending.ticks) == 2
    assert bench.store.contents.message_bytes(2) == 1
    bench.refuse = False
    bench.store.materialise(2)
    assert bench.store.file_revision == 2
    assert not bench.store.pending.ticks
    assert bench.store.pending.size_bytes == 0


def test_a_file_that_cannot_be_written_leaves_everything_pending(bench: Bench) -> None:
    bench.append(1)
    bench.store.materialise(1)
    bench.append(2)
    full = mock.Mock(side_effect=StorageFailedError(reason="full"))
    with mock.patch.object(StoreFile, "apply", full), pytest.raises(StorageFailedError):
        bench.store.materialise(2)
    bench.store.validate()
    assert bench.store.contents.message_bytes(2) == 1
    bench.store.materialise(2)
    assert bench.store.file_revision == 2


def test_the_oldest_segment_is_needed_until_its_changes_are_durable(bench: Bench) -> None:
    bench.append(1, segment=1)
    bench.append(2, segment=2)
    bench.append(3, segment=5)
    bench.store.materialise(2)
    assert bench.store.oldest_segment == 1
    bench.store.checkpointed()
    assert bench.store.oldest_segment == 5
    bench.store.materialise(3)
    bench.store.checkpointed()
    assert bench.store.oldest_segment is None


def test_outcomes_without_changes_reach_the_file_too(bench: Bench) -> None:
    store = bench.store
    store.begin()
    store.outcomes.append(WriterOutcome(b"w", 1, 1, 1, b"refused"))
    store.finish_tick(1, 1)
    store.materialise(1)
    assert file_of(store).outcomes(b"w") == [(1, b"refused")]
    assert store.revision == store.file_revision == 0


def test_what_a_tick_did_can_be_seen_and_taken_back_while_earlier_ones_wait(bench: Bench) -> None:
    bench.append(1, value=b"first")
    store = bench.store
    store.begin()
    store.delete_messages([1])
    store.set_message(1, 3, [CHANGE_SET_MESSAGE, 1, b"new"])
    store.trim(1, 1, 3)
    assert (store.contents.message_bytes(1), store.count, store.bytes) == (None, 0, 0)
    store.fail_tick()
    store.validate()
    assert store.contents.message_bytes(1) == 5
    assert (store.count, store.bytes, store.revision) == (1, 5, 1)


def test_materialising_during_a_tick_keeps_what_the_tick_sees(bench: Bench) -> None:
    bench.append(1)
    store = bench.store
    store.begin()
    store.set_message(2, 4, [CHANGE_SET_MESSAGE, 2, b"four"])
    store.materialise(1)
    store.validate()
    assert (store.contents.message_bytes(1), store.contents.message_bytes(2)) == (1, 4)
    store.finish_tick(2, 1)
    store.materialise(2)
    assert store.file_revision == 2


VALUES = st.binary(max_size=50)
HEADERS = st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=9), max_size=3)
NUMBERS = st.integers(0, (1 << 63) - 1)
CHANGES: st.SearchStrategy[list[Any]] = st.one_of(
    st.tuples(st.just(1), NUMBERS, VALUES, HEADERS, st.none() | st.text(max_size=9)),
    st.tuples(st.just(3), st.lists(NUMBERS, max_size=9)),
    st.tuples(st.just(4), NUMBERS),
    st.tuples(st.just(5), st.text(max_size=30), VALUES, HEADERS),
    st.tuples(st.just(6), st.lists(st.text(max_size=30), max_size=9)),
    st.just((7,)),
).map(list)


@given(st.lists(CHANGES, max_size=5))
@settings(deadline=None, max_examples=examples(200))
def test_the_size_of_changes_is_never_less_than_they_take_on_the_wire(
    changes: list[list[Any]],
) -> None:
    assert bytes_of(changes) >= len(frames.pack(changes)) - 5


def test_sizes_count_values_headers_and_keys() -> None:
    headers = {"h": "x"}
    packed = len(frames.pack(headers))
    assert message_bytes_of([1, 1, b"abc"]) == 3
    assert message_bytes_of([1, 1, b"abc", headers, "id"]) == 3 + packed
    assert message_bytes_of([1, 1, b"abc", None, "id"]) == 3
    assert entry_bytes_of([5, "é", b"abc", headers]) == 2 + 3 + packed


@pytest.mark.parametrize("store_id", [stream_id(), kv_id()], ids=["stream", "kv"])
def test_a_closed_store_is_gone_without_the_collector(store_id: StoreId, tmp_path: Path) -> None:
    file = StoreFile.create(tmp_path / "store.db", store_id, time=1)
    store = store_of(store_id, file=file)
    # A kv that keeps former values asks its contents for the present ones.
    store.contents.memtable.keep_versions(2)
    assert store.contents.subjects.exists is False
    file.close()
    parts = (store.contents, store.contents.memtable.versions, store.contents.subjects, file)
    kept = [weakref.ref(part) for part in parts if hasattr(type(part), "__weakref__")]
    assert len(kept) >= 2
    with without_collection():
        del store, file, parts
        assert [part() for part in kept] == [None] * len(kept)


def test_memory_forgets_what_is_in_the_file_once_that_is_most_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking: list[int] = []
    rebuild = Memtable.rebuild

    def noted(kept: Memtable, unwritten: Any) -> None:
        lacking.append(store.revision - store.file_revision)
        rebuild(kept, unwritten)

    monkeypatch.setattr(memtable, "_MIN_KEPT", 8)
    monkeypatch.setattr(Memtable, "rebuild", noted)
    bench = Bench(tmp_path / "db")
    store = bench.store
    for tick in range(1, 201):
        bench.append(tick)
    for _ in range(200):
        store.materialise_some(200, 1, 1)
        store.validate()
    # Not each time, which would take a look at all of it for each slice.
    assert lacking == [200 // 8]
    assert len(store.contents.memtable.messages) == 200 // 8
    abandon(store)

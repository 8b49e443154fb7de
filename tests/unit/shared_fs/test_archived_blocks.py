"""Archived messages in a store file: the stream stays what it is, whatever is archived of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.persist.operations import eviction
from holdfast.protocol import frames
from holdfast.protocol.changes import (
    CHANGE_ARCHIVE,
    CHANGE_DELETE_MESSAGES,
    CHANGE_SET_MESSAGE,
    CHANGE_TRIM,
    REASON_LIMIT,
)
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.protocol.store_config import StoreConfig
from holdfast.shared_fs.inspection.inspection import FileState, inspect_store_file
from holdfast.shared_fs.store_file import archived_blocks
from holdfast.shared_fs.store_file.applying import AppliedBatch, pack_headers
from holdfast.shared_fs.store_file.archived_blocks import ArchivedMessage, checksum_of, digest_of
from holdfast.shared_fs.store_file.reading.going_rows import GoingOrder
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.effort import examples
from tests.support.stores import store_of

STREAM = StoreId("acme", StoreKind.STREAM, "notes")
FAR = (1 << 63) - 1


class Model:
    """What the stream holds: `seq -> (revision, time, value, headers, replaced)`."""

    def __init__(self, file: StoreFile) -> None:
        self.file = file
        self.rows: dict[int, tuple[int, int, bytes, dict[str, str] | None, bool]] = {}
        self.archived: dict[tuple[int, int], tuple[bytes, dict[str, str] | None]] = {}
        self.last_seq = 0
        self.time = 1000

    def apply(self, change: list[Any]) -> None:
        revision = self.file.meta.revision
        self.file.apply([AppliedBatch(revision, self.time, [change])])

    def append(self, value: bytes, headers: dict[str, str] | None = None) -> None:
        self.set(self.last_seq + 1, value, headers)

    def set(self, seq: int, value: bytes, headers: dict[str, str] | None = None) -> None:
        self.apply([CHANGE_SET_MESSAGE, seq, value, headers])
        is_new = seq == self.last_seq + 1
        self.rows[seq] = (self.file.meta.revision, self.time, value, headers, not is_new)
        self.last_seq = max(self.last_seq, seq)

    def delete(self, seqs: list[int]) -> None:
        present = [seq for seq in seqs if seq in self.rows]
        if present:
            self.apply([CHANGE_DELETE_MESSAGES, present])
            for seq in present:
                del self.rows[seq]

    def trim(self, end_seq: int) -> None:
        self.apply([CHANGE_TRIM, end_seq])
        self.rows = {seq: row for seq, row in self.rows.items() if seq > end_seq}

    def archive(self, end_seq: int) -> None:
        self.apply([CHANGE_ARCHIVE, end_seq, "file:///table"])

    def filled(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a row of the file as if nothing of it were archived."""
        seq, revision, time, value, headers = row
        if isinstance(value, ArchivedMessage):
            assert (value.seq, value.revision, value.time) == (seq, revision, time)
            assert value.place == ("file:///table", "acme", "notes")
            kept = self.rows[seq]
            packed = pack_headers(kept[3])
            assert value.size_bytes == len(kept[2]) + len(packed or b"")
            assert value.checksum == checksum_of(kept[2], packed)
            assert not kept[4], "what was set again is not archived"
            value, headers = kept[2], kept[3]
        elif isinstance(headers, bytes):
            headers = frames.unpack(headers)
        return seq, revision, time, value, headers

    def check(self) -> None:
        file, rows = self.file, self.rows
        wanted = [(seq, *rows[seq][:4]) for seq in sorted(rows)]
        assert [self.filled(row) for row in file.messages(1, None, 10_000)] == wanted
        sizes = {seq: len(row[2]) + len(pack_headers(row[3]) or b"") for seq, row in rows.items()}
        assert (file.meta.count, file.meta.bytes) == (len(rows), sum(sizes.values()))
        assert file.first_seq() == min(rows, default=self.last_seq + 1)
        for seq in range(self.last_seq + 2):
            found = file.message(seq)
            assert (found is not None) == (seq in rows)
            assert file.message_bytes(seq) == sizes.get(seq)
        for start in range(1, self.last_seq + 1, 3):
            inside = [size for seq, size in sizes.items() if start <= seq <= start + 4]
            assert file.sum_messages(start, start + 4) == (len(inside), sum(inside))
            page = file.message_page(start, None, max_rows=3, max_bytes=40)
            got = [self.filled(row)[0] for row in page.rows]
            assert got == [seq for seq in sorted(rows) if seq >= start][: len(got)]
            assert page.more == (bool(got) and got[-1] < max(rows))
        for count in range(1, len(rows) + 2):
            expected = sorted(rows)[-count] if count <= len(rows) else 1
            assert file.seq_from_end(count) == expected
        assert [row.key for row in file.going(GoingOrder.LIMITS)] == sorted(rows)
        appended = [seq for seq in sorted(rows) if not rows[seq][4]]
        assert [row.key for row in file.going(GoingOrder.TIME)] == appended
        self.check_catch_up()
        self.check_times(appended)

    def check_catch_up(self) -> None:
        held: dict[int, int] = {}
        revision = seq = 0
        complete = False
        while not complete:
            changes, complete = self.file.changes_after(
                revision, seq, deletes_after=FAR, max_rows=4, max_bytes=50
            )
            for changed_at, _, change in changes:
                held[change[1]] = changed_at
                seq = max(seq, change[1])
                revision = changed_at
        assert held == {each: row[0] for each, row in self.rows.items()}

    def check_times(self, appended: list[int]) -> None:
        for time in {row[1] for row in self.rows.values()}:
            wanted = [seq for seq in appended if self.rows[seq][1] >= time]
            start = self.file.seq_at_time(time)
            earlier = [seq for seq in appended if start <= seq and self.rows[seq][1] < time]
            assert not earlier
            assert not wanted or start <= wanted[0]


def steps() -> st.SearchStrategy[list[tuple[Any, ...]]]:
    seqs = st.integers(1, 40)
    values = st.binary(max_size=20)
    headers = st.sampled_from([None, {"a": "1"}])
    step = st.one_of(
        st.tuples(st.just("append"), st.lists(values, min_size=1, max_size=6), headers),
        st.tuples(st.just("set"), seqs, values, headers),
        st.tuples(st.just("delete"), st.lists(seqs, max_size=4)),
        st.tuples(st.just("trim"), seqs),
        st.tuples(st.just("archive"), seqs),
        st.tuples(st.just("archive"), seqs),
        st.tuples(st.just("reopen")),
    )
    return st.lists(step, min_size=4, max_size=25)


@settings(max_examples=examples(60), deadline=None)
@given(steps=steps())
def test_whatever_is_archived_the_stream_answers_as_its_model(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]]
) -> None:
    path = tmp_path_factory.mktemp("store") / "db"
    model = Model(StoreFile.create(path, STREAM, time=1))
    try:
        for name, *arguments in steps:
            model.time += 10
            if name == "append":
                for value in arguments[0]:
                    model.append(value, arguments[1])
            elif name == "set":
                model.set(min(arguments[0], model.last_seq + 1), *arguments[1:])
            elif name == "delete":
                model.delete(list(dict.fromkeys(arguments[0])))
            elif name in ("trim", "archive"):
                getattr(model, name)(min(arguments[0], model.last_seq))
            else:
                model.file.close()
                model.file = StoreFile.open(path, STREAM)
        model.check()
        model.file.close()
        assert inspect_store_file(path, STREAM, deep=True).state is FileState.SOUND
        model.file = StoreFile.open(path, STREAM)
    finally:
        model.file.abandon()


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Model]:
    made = Model(StoreFile.create(tmp_path / "db", STREAM, time=1))
    yield made
    made.file.abandon()


def fill(model: Model, count: int, value: bytes = b"v" * 100) -> None:
    for _ in range(count):
        model.append(value)


def test_what_is_drafted_is_what_is_archived_block_by_block(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archived_blocks, "ARCHIVE_BLOCK_ROWS", 4)
    fill(model, 10)
    model.set(3, b"again")
    model.time += 1000
    fill(model, 5)
    assert model.file.oldest_time() == 1000
    drafts = model.file.archivable("file:///table", revision=9, time=1500, max_blocks=9)
    assert [[each.seq for each in draft.messages] for draft in drafts] == [
        [1, 2, 4, 5],
        [6, 7, 8, 9],
    ]
    rows = [row for row in model.file.messages(1, 5, 9) if row[0] != 3]
    assert drafts[0].digest == digest_of(rows)
    for draft in drafts:
        model.archive(draft.end_seq)
    archived = [row[0] for row in model.file.messages(1, None, 99) if row[0] != row[3]]
    assert archived == list(range(1, 16))
    again = model.file.archivable("file:///table", revision=FAR, time=1500, max_blocks=9)
    assert [[each.seq for each in draft.messages] for draft in again] == [[10]]
    model.check()


def test_a_transaction_that_is_taken_back_archives_nothing(model: Model) -> None:
    fill(model, 10)
    archive = [CHANGE_ARCHIVE, 5, "file:///table"]
    before = model.file.meta
    with model.file.preview([AppliedBatch(before.revision, 2000, [archive])]):
        assert model.file.has_archived
        assert isinstance(model.file.message(5)[3], ArchivedMessage)  # type: ignore[index]
    assert not model.file.has_archived
    model.check()


def test_a_file_that_was_archived_gives_its_pages_back(model: Model, tmp_path: Path) -> None:
    fill(model, 3000)
    model.file.checkpoint()
    before = (tmp_path / "db").stat().st_size
    assert not model.file.shrink()
    model.archive(3000)
    assert model.file.shrink()
    assert (tmp_path / "db").stat().st_size < before / 4
    model.file.close()
    model.file = StoreFile.open(tmp_path / "db", STREAM)
    assert len(list(model.file.messages(1, None, 9999))) == 3000


def test_a_file_with_archived_messages_is_not_for_an_earlier_version(
    model: Model, tmp_path: Path
) -> None:
    fill(model, 3)
    model.archive(2)
    model.file.checkpoint()
    model.file.close()
    with sqlite3.connect(f"file:{tmp_path / 'db'}?immutable=1", uri=True) as connection:
        assert connection.execute("PRAGMA user_version").fetchone()[0] >= 3
        assert connection.execute("SELECT start_seq, end_seq FROM archived").fetchall() == [(1, 2)]
    model.file = StoreFile.open(tmp_path / "db", STREAM)


def test_limits_remove_archived_messages_like_others(model: Model) -> None:
    fill(model, 20, b"x")
    model.archive(15)
    store = store_of(STREAM, file=model.file)
    store.begin()
    store.configure(StoreConfig(max_messages=8))
    eviction.evict(store)
    assert (store.count, store.bytes) == (8, 8)
    assert store.changes[-1] == [CHANGE_TRIM, 12, REASON_LIMIT]
    assert store.sum_up_to(14) == (2, 2)
    assert store.contents.message_bytes(12) is None
    assert store.contents.message_bytes(13) == 1
    store.delete_messages([13])
    assert (store.count, store.contents.message_bytes(13)) == (7, None)
    store.finish_tick(1, 1)
    store.materialise(1)
    assert (model.file.meta.count, model.file.first_seq()) == (7, 14)

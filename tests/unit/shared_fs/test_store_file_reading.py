"""Reading store files: pages, ranges, times, keys in order; damage is reported when it is read."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.protocol.changes import CHANGE_SET_ENTRY, CHANGE_SET_MESSAGE, CHANGE_TRIM
from holdfast.protocol.errors import StorageError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.reading.entry_rows import _prefix_end
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.effort import examples
from tests.support.small_store_files import KV, STREAM, appends, rows_of


@given(
    st.lists(st.tuples(st.integers(0, 300), st.booleans()), max_size=120),
    st.integers(1, 130),
    st.integers(1, 5000),
)
@settings(deadline=None, max_examples=examples(60))
def test_a_page_holds_the_rows_that_fit_and_says_if_there_are_more(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[tuple[int, bool]],
    max_rows: int,
    max_bytes: int,
) -> None:
    file = StoreFile.create(tmp_path_factory.mktemp("store") / "db", STREAM, time=1)
    changes: list[Any] = [
        [CHANGE_SET_MESSAGE, seq, bytes(size_bytes), {"h": "x"} if headers else None]
        for seq, (size_bytes, headers) in enumerate(sizes, start=1)
    ]
    file.apply([AppliedBatch(0, 1000, changes)])
    expected: list[int] = []
    total_bytes = 0
    for row in file.messages(1, None, 1000):
        wanted_bytes = 32 + len(row[3]) + len(row[4] or b"")
        if len(expected) == max_rows or (expected and total_bytes + wanted_bytes > max_bytes):
            break
        expected.append(row[0])
        total_bytes += wanted_bytes
    page = file.message_page(1, None, max_rows=max_rows, max_bytes=max_bytes, row_bytes=32)
    assert [row[0] for row in page.rows] == expected
    assert page.size_bytes == total_bytes
    assert page.more == (len(expected) < len(sizes))
    assert all(row[4] == ({"h": "x"} if sizes[row[0] - 1][1] else None) for row in page.rows)
    file.abandon()


def test_a_scan_goes_on_while_something_else_is_read(file: StoreFile) -> None:
    file.apply([appends(1, 200)])
    seen = []
    for row in file.messages(1, None, 1000):
        assert file.message(200 - row[0] + 1) is not None
        seen.append(row[0])
    assert seen == list(range(1, 201))
    file.checkpoint()


def test_a_scan_that_is_given_up_does_not_hold_up_the_checkpoint(file: StoreFile) -> None:
    file.apply([appends(1, 200)])
    assert next(file.messages(1, None, 1000))[0] == 1
    assert file.message_page(1, None, max_rows=3, max_bytes=1000).more
    file.checkpoint()
    assert file.wal_bytes() == 0


@pytest.mark.parametrize("kind", StoreKind)
def test_every_page_of_a_new_file_has_its_checksum(path: Path, kind: StoreKind) -> None:
    store = StoreId("acme", kind, "a.b")
    StoreFile.create(path, store, time=1).close()
    sound = path.read_bytes()
    for page in range(len(sound) // schema.PAGE_BYTES):
        damaged = bytearray(sound)
        # In the middle of a page is free space, where only a checksum can see it.
        damaged[page * schema.PAGE_BYTES + 100 + 20 * page] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(StorageError):
            file = StoreFile.open(path, store)
            try:
                file.quick_check()
            finally:
                file.abandon()


@pytest.mark.parametrize("bounds", [(2, 1 << 30), (100, 1)])
def test_a_page_of_changes_never_passes_over_what_a_bound_cut_off(
    file: StoreFile, bounds: tuple[int, int]
) -> None:
    file.apply([appends(1, 6)])
    file.apply([AppliedBatch(6, 2000, [[CHANGE_SET_MESSAGE, 2, b"w"], [3, [4]]])])
    found, complete = file.changes_after(
        0, 0, deletes_after=0, max_rows=bounds[0], max_bytes=bounds[1]
    )
    # Seqs 3, 5 and 6 come later: so do the replacement and the delete, which are newer.
    assert [change[2][1] for change in found] == ([1, 3] if bounds[0] == 2 else [1])
    assert not complete
    everything, complete = file.changes_after(
        0, 0, deletes_after=0, max_rows=100, max_bytes=1 << 30
    )
    assert [change[0] for change in everything] == [1, 3, 5, 6, 7, 8]
    assert complete


@given(st.lists(st.integers(0, 5), min_size=1, max_size=25), st.integers(0, 1 << 30))
@settings(deadline=None, max_examples=examples(60))
def test_reading_from_a_time_misses_nothing_appended_since(
    tmp_path_factory: pytest.TempPathFactory, gaps: list[int], seed: int
) -> None:
    rng = random.Random(seed)
    file = StoreFile.create(tmp_path_factory.mktemp("store") / "db", STREAM, time=1)
    appended, now = {}, 1000
    for seq, gap in enumerate(gaps, start=1):
        now += gap
        file.apply([AppliedBatch(file.meta.revision, now, [[1, seq, b"v"]])])
        appended[seq] = now
    for _ in range(rng.randint(0, 5)):
        seq = rng.randint(1, len(gaps))
        change: list[Any] = rng.choice([[1, seq, b"w"], [3, [seq]]])
        file.apply([AppliedBatch(file.meta.revision, now, [change])])
    untouched = [row for row in rows_of(file) if row[3] == b"v"]
    for start_time in {999, now + 1, *appended.values()}:
        start = file.seq_at_time(start_time)
        assert all(seq >= start for seq, time in appended.items() if time >= start_time)
        assert all(row[2] >= start_time for row in untouched if row[0] >= start)
    file.abandon()


@given(st.text(max_size=4), st.text(max_size=6))
@settings(deadline=None, max_examples=examples(300))
def test_a_prefix_range_holds_exactly_the_texts_with_the_prefix(prefix: str, text: str) -> None:
    end = _prefix_end(prefix)
    encoded = text.encode()
    below = encoded < end.encode() if isinstance(end, str) else True
    assert text.startswith(prefix) == (prefix.encode() <= encoded and below)


ODD_KEYS = [
    *("", "\x00", "\x00\x00", "a", "a\x00", "a\x00b", "ab", "a\U0010ffff", "a\U0010ffff\U0010ffff"),
    *(
        "b",
        "\ud7ff",
        "\ud7ffx",
        "\ue000",
        "\uffff",
        "\U0010ffff",
        "\U0010ffffz",
        "🪸",
        "é",
        "e\u0301",
    ),
    *("a!@#$%^&*|()", '["x","y"]', "k" * 1000, "%", "_", "A", "Ab"),
]


@pytest.mark.parametrize("page", [1, 2, 100])
@pytest.mark.parametrize(
    "prefix", ["", "a", "a\U0010ffff", "\U0010ffff", "\ud7ff", "k" * 999, "zz"]
)
def test_keys_of_a_prefix_come_in_pages_in_the_order_of_their_bytes(
    path: Path, prefix: str, page: int
) -> None:
    file = StoreFile.create(path, KV, time=1)
    changes: list[Any] = [[CHANGE_SET_ENTRY, key, key.encode()] for key in ODD_KEYS]
    file.apply([AppliedBatch(0, 1000, changes)])
    expected = sorted((key for key in ODD_KEYS if key.startswith(prefix)), key=str.encode)
    found: list[str] = []
    after = None
    while rows := list(file.entries(prefix, after, page, with_values=False)):
        assert all(row[3] is None for row in rows)
        found += [row[0] for row in rows]
        after = found[-1]
    assert found == expected
    for key in ODD_KEYS:
        row = file.entry(key)
        assert row is not None
        assert row[3] == key.encode()
    file.close()


def test_first_last_and_the_last_few_of_a_stream(file: StoreFile) -> None:
    assert (file.first_seq(), file.seq_from_end(3)) == (1, 1)
    file.apply([appends(1, 6)])
    file.apply([AppliedBatch(6, 2000, [[CHANGE_TRIM, 2], [3, [4]]])])
    assert file.first_seq() == 3
    assert [file.seq_from_end(count) for count in (1, 2, 3, 4)] == [6, 5, 3, 1]
    file.apply([AppliedBatch(8, 2000, [[CHANGE_TRIM, 6]])])
    assert (file.first_seq(), file.meta.last_seq, file.meta.count, file.meta.bytes) == (7, 6, 0, 0)


def read_all(file: StoreFile) -> None:
    for seq in range(1, 301):
        file.message(seq)


@pytest.mark.parametrize("read", [read_all, StoreFile.quick_check])
def test_damage_inside_a_file_is_reported_when_it_is_read(
    path: Path, read: Callable[[StoreFile], None]
) -> None:
    file = StoreFile.create(path, STREAM, time=1)
    file.apply([appends(1, 300, size_bytes=300)])
    file.close()
    raw = bytearray(path.read_bytes())
    raw[20 * schema.PAGE_BYTES :] = b"\xff" * (len(raw) - 20 * schema.PAGE_BYTES)
    path.write_bytes(raw)
    file = StoreFile.open(path, STREAM)
    with pytest.raises(StorageError):
        read(file)
    file.abandon()

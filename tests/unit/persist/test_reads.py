"""Reads: pages that fit, typed refusals, and a follower that is told when to start over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.persist.archive_reading.archive_access import ArchiveAccess
from holdfast.persist.operations import reads
from holdfast.persist.operations.read_rows import ArchiveNeededError
from holdfast.persist.store.open_stores import Arrival
from holdfast.persist.write_path.archive_reads import ArchiveReads
from holdfast.protocol import frames
from holdfast.protocol.changes import (
    CHANGE_ARCHIVE,
    CHANGE_DELETE_ENTRIES,
    CHANGE_DELETE_MESSAGES,
    CHANGE_PUT_CHUNK,
    CHANGE_SET_ENTRY,
    CHANGE_SET_MESSAGE,
)
from holdfast.protocol.errors import ERRORS_BY_CODE, ProtocolError, RequestError
from holdfast.protocol.header_block import HeaderBlock
from holdfast.protocol.limits import (
    FRAME_RESERVE_BYTES,
    MAX_CHANGE_LOG_ROWS,
    MAX_KEY_BYTES,
    MIN_PAYLOAD_BYTES,
    PAGE_ROWS,
)
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.archive.archive_table import Archive
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.archived_blocks import ArchivedMessage, Bodies
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.near import helpers_of
from tests.support.stores import store_of
from tests.support.write_path_parts import a_life, at_once

LIMIT = MIN_PAYLOAD_BYTES - FRAME_RESERVE_BYTES


class Bench:
    """A store whose file was filled directly."""

    def __init__(self, path: Path, kind: StoreKind) -> None:
        self.id = StoreId("acme", kind, "a")
        self.file = StoreFile.create(path, self.id, time=1)
        self.store = store_of(self.id, 3, self.file)

    def close(self) -> None:
        self.file.abandon()

    def apply(self, *changes: list[Any], time: int = 1000) -> None:
        self.file.apply([AppliedBatch(self.file.meta.revision, time, list(changes))])

    def read(self, *wanted: list[Any]) -> list[Any]:
        """Return the results that one frame gets, checked to fit in its reply."""
        results = reads.execute(self.store, "s1", frames.unpack(frames.pack(wanted)))
        assert 1 <= len(results) <= len(wanted)
        assert len(frames.encode_outcome(1 << 62, 1 << 62, 0, results)) < LIMIT
        return results


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Bench]:
    with closing(Bench(tmp_path / "stream", StoreKind.STREAM)) as bench:
        yield bench


@pytest.fixture
def kv(tmp_path: Path) -> Iterator[Bench]:
    with closing(Bench(tmp_path / "kv", StoreKind.KV)) as bench:
        yield bench


def messages(count: int, size_bytes: int = 1, headers: dict[str, str] | None = None) -> Any:
    return [[CHANGE_SET_MESSAGE, seq + 1, bytes(size_bytes), headers] for seq in range(count)]


def entries(count: int, key_bytes: int = 4, size_bytes: int = 0) -> list[list[Any]]:
    return [
        [CHANGE_SET_ENTRY, f"{number:0{key_bytes}d}", bytes(size_bytes)] for number in range(count)
    ]


@pytest.mark.parametrize("kind", StoreKind)
def test_a_store_that_nobody_wrote_reads_as_empty(kind: StoreKind) -> None:
    store = store_of(StoreId("acme", kind, "a"), 3)

    def read(*wanted: Any) -> Any:
        return reads.execute(store, "s1", [list(wanted)])[0]

    assert read(frames.HEAD)[:7] == [0, 1, 0, 0, 0, 3, "s1"]
    assert read(frames.CHANGES, 0, 0) == [[], 0, 0, 0, False]
    assert read(frames.CHANGES, 5, 5) == [[], 0, 0, 0, True]
    if kind is StoreKind.STREAM:
        assert read(frames.GET_MESSAGE, 1) is None
        assert read(frames.GET_MESSAGES) == [[], None]
    else:
        assert read(frames.GET_ENTRY, "k") is None
        assert read(frames.GET_ENTRIES) == [[], None]


def all_pages(bench: Bench, number: int, *first: Any) -> list[Any]:
    (rows, after), *_ = bench.read([number, *first])
    while after is not None:
        rest = [after] if number == frames.GET_MESSAGES else [first[0], after, *first[2:]]
        (page, after), *_ = bench.read([number, *rest])
        assert page
        rows += page
    return list(rows)


@pytest.mark.parametrize(
    ("count", "size_bytes", "headers"),
    [
        (PAGE_ROWS + 1, 1, None),
        (3, 1_000_000, None),
        (100, 0, {"h": "x" * 16_000}),
        (20, 60_000, None),
    ],
)
def test_a_range_comes_whole_in_pages_that_fit(
    stream: Bench, count: int, size_bytes: int, headers: dict[str, str] | None
) -> None:
    stream.apply(*messages(count, size_bytes, headers))
    rows = all_pages(stream, frames.GET_MESSAGES)
    assert [row[0] for row in rows] == list(range(1, count + 1))
    assert all(len(row[3]) == size_bytes and row[4] == headers for row in rows)


@pytest.mark.parametrize(
    ("count", "key_bytes", "size_bytes"),
    [(PAGE_ROWS + 1, 5, 0), (2000, 1000, 0), (300, 4096, 3), (3, 4096, 1_000_000)],
)
@pytest.mark.parametrize("with_values", [True, False])
def test_entries_come_whole_in_pages_that_fit_however_long_their_keys(
    kv: Bench, count: int, key_bytes: int, size_bytes: int, with_values: bool
) -> None:
    changes = entries(count, key_bytes, size_bytes)
    kv.apply(*changes)
    rows = all_pages(kv, frames.GET_ENTRIES, "", None, None, with_values)
    assert [row[0] for row in rows] == [change[1] for change in changes]
    assert all((row[3] is not None) == with_values for row in rows)


def test_many_reads_of_one_frame_are_answered_as_far_as_the_reply_goes(
    kv: Bench, stream: Bench
) -> None:
    changes = entries(400, 4000)
    kv.apply(*changes)
    wanted = [[frames.GET_ENTRY, change[1]] for change in changes]
    answered = 0
    while answered < len(wanted):
        results = kv.read(*wanted[answered:])
        assert [row[0] for row in results] == [
            each[1] for each in wanted[answered : answered + len(results)]
        ]
        answered += len(results)
    stream.apply(*messages(5, 400_000))
    assert len(stream.read(*[[frames.GET_MESSAGE, 1]] * 5)) == 1


def test_keys_that_are_named_come_in_their_order_as_far_as_the_page_goes(kv: Bench) -> None:
    kv.apply(*entries(5, size_bytes=200_000))
    wanted = ["0004", "none", "0000", "0004", "0001"]
    rows, next_index = kv.read([frames.GET_KEYS, wanted])[0]
    assert [row and row[0] for row in rows] == ["0004", None, "0000"]
    assert next_index == 3
    assert kv.read([frames.GET_KEYS, []])[0] == [[], None]
    assert kv.read([frames.GET_KEYS, "k"])[0][0] == "invalid_argument"
    assert kv.read([frames.GET_KEYS, [1]])[0][0] == "invalid_name"


#: Without headers, with a map, and with a block.
HEADERS = [None, {"lang": "en"}, HeaderBlock.of({"Nats-Msg-Id": "1"}).block]
KEYS = ["", "a", "a\x00", "a\x00b", "é", "🪸", "b" * MAX_KEY_BYTES, "none", "large"]


@given(
    st.dictionaries(st.sampled_from(KEYS[:-2]), st.tuples(st.binary(), st.sampled_from(HEADERS))),
    st.lists(st.sampled_from(KEYS), min_size=1, max_size=200),
)
def test_many_keys_are_read_as_each_by_itself(
    present: dict[str, tuple[bytes, Any]], wanted: list[str]
) -> None:
    with TemporaryDirectory() as folder, closing(Bench(Path(folder) / "kv", StoreKind.KV)) as kv:
        chunk = [CHANGE_PUT_CHUNK, b"u" * 16, 0, b"chunk", crc32(b"chunk")]
        large = [CHANGE_SET_ENTRY, "large", [b"u" * 16, 5, bytes(32), crc32(b"chunk")]]
        changes = [[CHANGE_SET_ENTRY, key, *each] for key, each in present.items()]
        kv.apply(chunk, large, *changes)
        alone = [kv.read([frames.GET_ENTRY, key])[0] for key in wanted]
        assert [row and row[0] for row in alone] == [
            key if key in present or key == "large" else None for key in wanted
        ]
        assert kv.read(*[[frames.GET_ENTRY, key] for key in wanted]) == alone
        assert kv.read([frames.GET_KEYS, wanted]) == [[alone, None]]


@pytest.mark.parametrize("sizes", [[200_000] * 5, [0, 600_000, 0, 1], [1_000_000] * 2])
def test_many_keys_are_answered_as_far_as_the_page_goes(kv: Bench, sizes: list[int]) -> None:
    kv.apply(*[[CHANGE_SET_ENTRY, f"{at}", bytes(size)] for at, size in enumerate(sizes)])
    wanted = ["none", *map(str, range(len(sizes))), "none", "0"] * 40
    answered: list[Any] = []
    named: list[Any] = []
    while len(answered) < len(wanted):
        answered += kv.read(*[[frames.GET_ENTRY, key] for key in wanted[len(answered) :]])
    while len(named) < len(wanted):
        rows, next_index = kv.read([frames.GET_KEYS, wanted[len(named) :]])[0]
        assert next_index in (len(rows), None)
        named += rows
    assert [row and (row[0], len(row[3])) for row in answered] == [
        None if key == "none" else (key, sizes[int(key)]) for key in wanted
    ]
    assert named == answered


def test_a_key_that_is_wrong_spoils_none_of_its_neighbours(kv: Bench) -> None:
    kv.apply(*entries(3))
    for wrong in (1, None, "k" * (MAX_KEY_BYTES + 1), "\ud800"):
        # A surrogate cannot travel, so these are executed as they are.
        found = reads.execute(kv.store, "s1", [[frames.GET_ENTRY, each] for each in ("0", wrong)])
        assert found[0] is None and found[1][0] == "invalid_name"
    first, other, last = kv.read(
        [frames.GET_ENTRY, "0001"], [frames.HEAD], [frames.GET_ENTRY, "0002"]
    )
    assert (first[0], other[0], last[0]) == ("0001", 3, "0002")
    assert kv.read([frames.GET_ENTRY, "0001"], [frames.GET_ENTRY])[1][0] == "malformed_frame"


def test_refusals_that_quote_much_are_answered_as_far_as_the_reply_goes(kv: Bench) -> None:
    kv.read(*[[frames.GET_ENTRY, ["🪸" * 80]]] * 4096)


def test_changes_come_whole_in_pages_that_fit(kv: Bench) -> None:
    changes = entries(1500, 1000)
    kv.apply(*changes)
    kv.apply(*[[CHANGE_DELETE_ENTRIES, [change[1]]] for change in changes[:600]])
    revision = 0
    state_revision: int | None = None
    found: list[Any] = []
    while True:
        wanted = [frames.CHANGES, revision, 0, None, state_revision]
        page, revision, _, head, reset = kv.read(wanted)[0]
        assert not reset
        found += page
        state_revision = head
        if revision == head:
            break
    assert [change[2][1] for change in found] == [change[1] for change in changes[600:]]
    page, revision, *_ = kv.read([frames.CHANGES, 1500, 0])[0]
    assert page[0][2] == [CHANGE_DELETE_ENTRIES, [changes[0][1]]]


def test_the_last_few_by_count_by_limit_and_by_time(stream: Bench) -> None:
    for seq in range(1, 7):
        stream.apply([CHANGE_SET_MESSAGE, seq, b"v"], time=1000 + seq)

    def seqs(*arguments: Any) -> list[int]:
        return [row[0] for row in stream.read([frames.GET_MESSAGES, *arguments])[0][0]]

    assert seqs(None, None, None, None, 2) == [5, 6]
    assert seqs(None, None, None, None, 99) == [1, 2, 3, 4, 5, 6]
    assert seqs(None, None, None, None, 0) == []
    assert seqs(None, None, None, None, -1) == []
    assert seqs(6, None, None, None, 2) == [6]
    assert seqs(2, 4) == [2, 3, 4]
    assert seqs(4, 2) == []
    assert seqs(-5, 1) == [1]
    assert seqs(None, None, 1004) == [4, 5, 6]
    assert seqs(None, None, 2000) == []
    assert seqs(None, None, -(1 << 63)) == [1, 2, 3, 4, 5, 6]
    assert seqs(2, None, None, 2) == [2, 3]
    assert seqs(None, None, None, 0) == []
    assert seqs((1 << 63) - 1) == []


def test_a_number_that_is_not_there_reads_as_none(stream: Bench) -> None:
    stream.apply(*messages(2))
    wanted = [[frames.GET_MESSAGE, seq] for seq in (0, -1, 3, (1 << 63) - 1, -(1 << 63))]
    assert stream.read(*wanted) == [None] * 5


WRONG: list[Any] = [True, 1.5, "text", b"bytes", [], {}, 1 << 63, (1 << 64) - 1]


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_a_wrong_argument_is_a_typed_refusal_beside_good_answers(
    stream: Bench, kv: Bench, wrong: Any
) -> None:
    changes: list[Any] = [frames.CHANGES, 0, 0, 0, 0]
    of_stream: list[list[Any]] = [[frames.GET_MESSAGE, 0], [frames.GET_MESSAGES, *[None] * 5]]
    of_kv: list[list[Any]] = [[frames.GET_ENTRY, 0], [frames.GET_ENTRIES, None, None, None]]
    takes_text = (frames.GET_ENTRY, frames.GET_ENTRIES)
    for bench, operations in ((stream, [*of_stream, changes]), (kv, [*of_kv, changes])):
        for operation in operations:
            for position in range(1, len(operation)):
                tried = list(operation)
                tried[position] = wrong
                if wrong == "text" and operation[0] in takes_text and position < 3:
                    continue
                refusal, head = bench.read(tried, [frames.HEAD])
                assert type(refusal[0]) is str, tried
                assert issubclass(ERRORS_BY_CODE[refusal[0]], RequestError | ProtocolError)
                assert head[5:7] == [3, "s1"]


@pytest.mark.parametrize("number", [frames.GET_ENTRY, frames.GET_ENTRIES, 60, 99, 1 << 60])
def test_a_read_that_a_stream_has_not_is_named(stream: Bench, number: int) -> None:
    assert stream.read([number])[0][0] == "unknown_operation"


@pytest.mark.parametrize("number", [frames.GET_MESSAGE, frames.GET_ENTRY, frames.CHANGES])
def test_a_read_without_its_arguments_is_malformed(stream: Bench, kv: Bench, number: int) -> None:
    bench = kv if number == frames.GET_ENTRY else stream
    assert bench.read([number])[0][0] in ("malformed_frame", "invalid_argument")


def test_a_follower_ahead_of_the_store_or_behind_the_horizon_starts_over(kv: Bench) -> None:
    kv.apply(*[[CHANGE_DELETE_ENTRIES, ["k"]]] * (MAX_CHANGE_LOG_ROWS + 10))
    kv.file.forget(msg_ids_before=0, outcomes_before=0)
    head = kv.file.meta.revision
    assert kv.read([frames.CHANGES, 9, 0])[0] == [[], 0, 0, head, True]
    assert kv.read([frames.CHANGES, head + 1, 0])[0] == [[], 0, 0, head, True]
    assert kv.read([frames.CHANGES, 10, 0, 5])[0][4] is False
    # Who has nothing needs no deletes.
    assert kv.read([frames.CHANGES, 0, 0])[0] == [[], head, 0, head, False]
    assert kv.read([frames.CHANGES, head, 0])[0] == [[], head, 0, head, False]


# Archived messages
class Known(Archive):
    """An archive that has all of it, and tells how often it was asked."""

    def __init__(self, values: dict[int, bytes]) -> None:
        super().__init__("file:///nowhere")
        self.values = values
        self.asked: list[list[int]] = []

    def bodies(self, messages: Sequence[ArchivedMessage]) -> Bodies:
        self.asked.append([each.seq for each in messages])
        return {(each.seq, each.revision): (self.values[each.seq], None) for each in messages}


@pytest.mark.parametrize(
    ("operation", "asked"),
    [
        ([frames.GET_MESSAGES, 3, 8], [3, 4, 5, 6]),
        ([frames.GET_MESSAGE, 6], [6]),
        ([frames.GET_MESSAGE, 7], []),
        ([frames.GET_SEQS, [2, 5, 9]], [2, 5]),
        ([frames.GET_SEQS, [5, 6, 7]], [5, 6]),
        ([frames.CHANGES, 4, 4, 6], [5, 6]),
    ],
)
def test_an_answer_with_archived_messages_is_the_one_from_before_they_were(
    stream: Bench, operation: list[Any], asked: list[int]
) -> None:
    values = {seq: b"value %d" % seq for seq in range(1, 11)}
    stream.apply(*[[CHANGE_SET_MESSAGE, seq, value] for seq, value in values.items()])
    before = stream.read(operation)[0][0]
    stream.apply([CHANGE_ARCHIVE, 6, ""])
    archive = Known(values)
    if asked:
        with pytest.raises(ArchiveNeededError) as needed:
            stream.read(operation)
        bodies = archive.bodies(needed.value.messages)
        assert archive.asked == [asked]
        [found] = reads.execute(stream.store, "s1", [operation], bodies)
    else:
        [found] = stream.read(operation)
    assert frames.unpack(frames.pack(found[0])) == frames.unpack(frames.pack(before))


async def test_a_page_that_moves_on_between_two_tries_is_answered_all_the_same(
    stream: Bench, tmp_path: Path
) -> None:
    values = {seq: b"%d" % seq for seq in range(1, 21)}
    stream.apply(*[[CHANGE_SET_MESSAGE, seq, value] for seq, value in values.items()])
    stream.apply([CHANGE_ARCHIVE, 20, ""])
    archive = Known(values)
    operation = [frames.GET_MESSAGES, 1, None, None, 4]
    answers: list[Any] = []
    done = asyncio.Event()

    def read(arrivals: list[Arrival]) -> None:
        [arrival] = arrivals
        try:
            answers.append(reads.execute(stream.store, "s1", [operation], arrival.archived))
            done.set()
        except ArchiveNeededError as needed:
            tries = len(archive.asked)
            if tries < 3:
                stream.apply([CHANGE_DELETE_MESSAGES, [tries + 1]])
            archived_reads.want(arrival, needed.messages)

    inbox: Any = SimpleNamespace(submit_again=read, refuse_waiting=pytest.fail)
    life = a_life(Layout(tmp_path))
    access = ArchiveAccess(archive, life, helpers_of({}), at_once)
    archived_reads = ArchiveReads(access, inbox, life)
    async with asyncio.timeout(10.0), asyncio.TaskGroup() as tasks:
        work = tasks.create_task(archived_reads.run())
        group = frames.Group(StoreKind.STREAM, "a", 0, 0, 0, [operation])
        read([Arrival("reply", 0, b"reader", stream.id, group)])
        await done.wait()
        work.cancel()
    [[[rows, _]]] = answers
    assert [row[0] for row in rows] == [4, 5, 6, 7]
    assert archive.asked == [[1, 2, 3, 4], [5], [6], [7]]

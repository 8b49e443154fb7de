"""Appends that are accepted and applied as a run: they come out as if they came one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.persist.operations import append_runs
from holdfast.protocol import frames
from holdfast.protocol.header_block import HeaderBlock
from holdfast.protocol.limits import (
    MAX_HEADER_BLOCK_BYTES,
    MAX_MESSAGE_SUBJECT_BYTES,
    MAX_VALUE_BYTES,
)
from holdfast.protocol.names import StoreKind
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.stores import file_of
from tests.support.ticked_store import Bench, configure

BLOCK = HeaderBlock.of({"a": "1"}).block
EPOCH = 3


@pytest.fixture
def streams(tmp_path: Path) -> Iterator[tuple[Bench, Bench]]:
    """Two that are alike."""
    with ExitStack() as stack:
        benches = []
        for name in ("one", "other"):
            (tmp_path / name).mkdir()
            bench = stack.enter_context(closing(Bench(tmp_path / name, StoreKind.STREAM)))
            configure(bench, serving_epoch=EPOCH, max_messages_per_subject=20)
            benches.append(bench)
        yield benches[0], benches[1]


def append(subject: Any, value: Any = b"v", headers: Any = None, epoch: Any = EPOCH) -> list[Any]:
    return [frames.APPEND, value, headers, None, None, None, subject, epoch]


def is_run(bench: Bench, *wanted: list[Any]) -> bool:
    """Tell if a new store would accept these as a run."""
    store = bench.store
    assert store.retention is not None
    store.begin()
    savepoint = store.savepoint()
    run = append_runs.run_within_limits(
        store, store.retention, frames.unpack(frames.pack(list(wanted)))
    )
    store.go_back(savepoint)
    return run is not None


def come_out_alike(streams: tuple[Bench, Bench], *wanted: list[Any]) -> None:
    """Execute appends as they are, and so that each is looked at on its own; compare."""
    together, singly = streams
    # Options that say nothing make no run.
    assert together.tick(*wanted) == singly.tick(*([*each, None] for each in wanted))
    assert together.broadcasts == singly.broadcasts
    for each in ("revision", "last_seq", "count", "bytes"):
        assert getattr(together.store, each) == getattr(singly.store, each), each
    assert together.read(frames.GET_MESSAGES) == singly.read(frames.GET_MESSAGES)
    assert together.read(frames.SUBJECTS, None, None, 99) == singly.read(
        frames.SUBJECTS, None, None, 99
    )


@pytest.mark.parametrize(
    "wanted",
    [
        [append("a")],
        [append(subject, b"v" * index) for index, subject in enumerate("abacabad")],
        [append("a", headers=BLOCK), append("b"), append("ä", headers=BLOCK), append("a")],
        [append("a.*"), append(">"), append("a"), append("b")],
        [append("a", b"v" * MAX_VALUE_BYTES)],
        [append("a", headers=HeaderBlock.of({"a": "1" * 9000}).block)] * 5,
        [append("a")] * 50,
    ],
)
def test_a_run_comes_out_as_its_appends_would(
    streams: tuple[Bench, Bench], wanted: list[Any]
) -> None:
    assert is_run(streams[0], *wanted)
    come_out_alike(streams, *wanted)
    come_out_alike(streams, *wanted)
    for bench in streams:
        bench.reopen()
    come_out_alike(streams, *wanted)


@pytest.mark.parametrize(
    "other",
    [
        append(""),
        append("a b"),
        append("a.>.b"),
        append(None),
        append(b"a"),
        append("a" * (MAX_MESSAGE_SUBJECT_BYTES + 1)),
        append("a", None),
        append("a", "v"),
        append("a", b"v" * (MAX_VALUE_BYTES + 1)),
        append("a", b"v" * MAX_VALUE_BYTES, b"NATS/1.0\r\n" + b"a: 1\r\n" * 10_000),
        append("a", headers=b""),
        append("a", headers={}),
        append("a", headers={"a": "1"}),
        append("a", headers=b"no block"),
        append("a", headers=b"NATS/1.0\r\n" + b"a" * MAX_HEADER_BLOCK_BYTES),
        append("a", epoch=EPOCH - 1),
        append("a", epoch=float(EPOCH)),
        append("a", epoch=None),
        [frames.APPEND, b"v", None, "id", None, None, "a", EPOCH],
        [frames.APPEND, b"v", None, None, 9, None, "a", EPOCH],
        [frames.APPEND, b"v", None, None, None, 5, "a", EPOCH],
        [frames.SET_MESSAGE, 1, b"v", None, None, None, "a", EPOCH],
    ],
    ids=lambda each: repr(each)[:60],
)
@pytest.mark.parametrize("is_alone", [False, True])
def test_what_needs_a_look_of_its_own_gets_it(
    streams: tuple[Bench, Bench], other: list[Any], is_alone: bool
) -> None:
    wanted = [other] if is_alone else [append("a"), other, append("b")]
    assert not is_run(streams[0], *wanted)
    if other[0] == frames.APPEND:
        come_out_alike(streams, *wanted)


@pytest.mark.parametrize(
    "limits",
    [
        {"max_message_bytes": 2},
        {"max_messages": 2, "discard": "new"},
        {"max_bytes": 9, "discard": "new"},
        {"max_messages_per_subject": 1, "discard": "new", "discard_new_per_subject": True},
        {"max_messages_per_second": 1},
        {"sealed": True},
    ],
    ids=repr,
)
def test_limits_that_concern_each_message_are_kept(
    streams: tuple[Bench, Bench], limits: dict[str, Any]
) -> None:
    for bench in streams:
        assert configure(bench, **limits)[0] == 2
    wanted = [append("a"), append("b", b"long"), append("a")]
    assert not is_run(streams[0], *wanted)
    come_out_alike(streams, *wanted)


@pytest.mark.parametrize(
    "wanted",
    [
        [append("a"), append("b", headers=BLOCK), append("a")],
        [append("a")] * 30,
        [append("a"), append("a b")],
        [append("a"), append("b", epoch=EPOCH - 1)],
    ],
)
def test_a_batch_of_plain_appends_comes_out_as_if_each_was_looked_at(
    streams: tuple[Bench, Bench], wanted: list[Any]
) -> None:
    together, singly = streams
    for _ in range(2):
        results = together.tick([frames.BATCH, wanted], append("z"))
        assert results == singly.tick(
            [frames.BATCH, [[*each, None] for each in wanted]], append("z")
        )
        assert together.broadcasts == singly.broadcasts
        assert together.read(frames.GET_MESSAGES) == singly.read(frames.GET_MESSAGES)
        assert together.store.revision == singly.store.revision


def test_a_run_is_taken_back_with_its_tick(streams: tuple[Bench, Bench]) -> None:
    together, singly = streams
    together.tick(append("a"), append("b"), commit=False)
    come_out_alike(streams, append("b"), append("a"))
    assert together.store.contents.subjects.count("a") == 1
    assert singly.store.last_seq == 2


def test_a_counter_counts_on_from_a_run(streams: tuple[Bench, Bench]) -> None:
    count = [*append("n", b""), {"incr": "+1"}]
    for bench in streams:
        assert bench.do(*count)[4] == "1"
    come_out_alike(streams, append("n", b'{"val":"7"}'), append("m"))
    for bench in streams:
        assert bench.do(*count)[4] == "8"


@pytest.mark.parametrize("headers", [None, BLOCK])
def test_the_log_gives_the_same_file_in_any_portions(
    streams: tuple[Bench, Bench], tmp_path: Path, headers: bytes | None
) -> None:
    bench = streams[0]
    bench.tick(*(append(name, headers=headers) for name in "abacaäb" * 5))
    bench.tick(*(append(name) for name in "abacad"), append("e", headers=headers))
    bench.materialise()
    file = StoreFile.create(tmp_path / "again.db", bench.id, time=0)
    for record in bench.records:
        for payload in record.payloads:
            _, previous, time, changes, _ = frames.decode_changes(payload)
            for index, change in enumerate(changes):
                file.apply([AppliedBatch(previous + index, time, [change])])
    assert list(file.messages(1, None, 99)) == list(file_of(bench.store).messages(1, None, 99))
    assert file.meta == file_of(bench.store).meta
    assert (file.subjects.damage(), file_of(bench.store).subjects.damage()) == ("", "")
    file.abandon()

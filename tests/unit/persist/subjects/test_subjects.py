"""Streams whose messages have subjects: what each operation stores, refuses and removes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.persist.operations import (
    appending,
    operations,
    purging,
    reads,
)
from holdfast.persist.store import subjects
from holdfast.protocol import frames
from holdfast.protocol.changes import (
    CHANGE_CONFIGURE,
    CHANGE_DELETE_MESSAGES,
    CHANGE_SET_MESSAGE,
    CHANGE_TRIM,
)
from holdfast.protocol.header_block import HeaderBlock
from holdfast.protocol.limits import (
    MAX_COUNTER_DIGITS,
    MAX_HEADER_BLOCK_BYTES,
    MAX_HEADERS_BYTES,
    MAX_VALUE_BYTES,
)
from holdfast.protocol.names import StoreKind
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.stores import file_of
from tests.support.subject_stream import BLOCK, append, changes_of, fill, there
from tests.support.ticked_store import Bench, configure

NO_BLOCK = b"NATS/1.0\r\n"


# Appends
def test_a_message_keeps_its_subject_and_its_header_block(stream: Bench) -> None:
    assert stream.do(*append("a.b", b"one", headers=BLOCK)) == [1, 1]
    assert stream.do(*append("a.c", b"two", headers={"user": "ada"})) == [2, 2]
    assert stream.do(frames.APPEND, b"three", BLOCK) == [3, 3]
    assert changes_of(stream)[0] == [CHANGE_SET_MESSAGE, 1, b"one", BLOCK, None, None, "a.b"]
    assert [tuple(row[3:]) for row in stream.read(frames.GET_MESSAGES)[0]] == [
        (b"one", BLOCK, "a.b"),
        (b"two", {"user": "ada"}, "a.c"),
        (b"three", BLOCK, None),
    ]
    packed = len(frames.pack({"user": "ada"}))
    size_bytes = (36 + len(BLOCK) + 4) + (36 + packed + 4) + (5 + len(BLOCK))
    assert stream.store.bytes == stream.read(frames.HEAD)[4] == size_bytes + stream.boxes(3)


def test_a_message_that_is_set_again_keeps_its_subject(stream: Bench) -> None:
    fill(stream, "a", "b")
    stream.do(frames.SET_MESSAGE, 1, b"again", {"h": "x"})
    assert there(stream) == ["a", "b"]
    stream.do(frames.DELETE_MESSAGES, [1])
    stream.do(frames.SET_MESSAGE, 1, b"back")
    assert there(stream) == [None, "b"]
    stream.reopen()
    stream.do(frames.SET_MESSAGE, 2, b"again")
    assert there(stream) == [None, "b"]
    assert stream.store.bytes == stream.read(frames.HEAD)[4]


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        (append("a.*"), "invalid_argument"),
        (append("a b"), "invalid_argument"),
        (append(7), "invalid_argument"),
        (append("a" * 1025), "too_large"),
        (append("a", headers=NO_BLOCK), "invalid_argument"),
        (append("a", headers=b"NATS/1.0\r\na:" + bytes(70_000) + b"\r\n\r\n"), "too_large"),
        (append("a", rollup="some"), "invalid_argument"),
        (append("a", unheard_of=1), "invalid_argument"),
        ([*append("a")[:8], 7], "invalid_argument"),
        (append(None, rollup="sub"), "invalid_argument"),
        (append(None, incr="1"), "invalid_argument"),
        (append(None, expected_last_subject_seq=0), "invalid_argument"),
        (append("a", expected_subject="a.>.b"), "invalid_argument"),
        (append("a", expected_last_subject_seq="0"), "invalid_argument"),
        (append("a", expected_last_msg_id=5), "invalid_argument"),
        (append("a", never_expires=1), "invalid_argument"),
        (append("a", never_expires=True, ttl_seconds=1), "invalid_argument"),
        (append("a", incr="1.5"), "invalid_argument"),
        (append("a", incr=1), "invalid_argument"),
        (append("a", b"not empty", incr="1"), "invalid_argument"),
        (append("a", incr="1" * (MAX_COUNTER_DIGITS + 1)), "invalid_argument"),
        (append("a", serving_epoch=3), "deposed_writer"),
        (append("a", serving_epoch="3"), "invalid_argument"),
        ([frames.PURGE, "a..b"], "invalid_argument"),
        ([frames.PURGE, "a", 0], "invalid_seq"),
        ([frames.PURGE, "a", "1"], "invalid_argument"),
        ([frames.PURGE, "a", None, -1], "invalid_argument"),
        ([frames.PURGE, "a", 5, 5], "invalid_argument"),
        ([frames.PURGE, "a", None, None, 7], "deposed_writer"),
        ([frames.DELETE_MESSAGES, [1], 7], "deposed_writer"),
        ([frames.CONFIGURE, {}, 7], "deposed_writer"),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(
    stream: Bench, operation: list[Any], code: str
) -> None:
    fill(stream, "a")
    assert stream.do(*operation)[0] == code
    assert stream.do(frames.BATCH, [append("a"), operation])[0] in (code, "invalid_argument")
    assert (stream.store.revision, stream.store.count, there(stream)) == (1, 1, ["a"])


def test_a_message_with_a_subject_fits_in_one_frame(stream: Bench) -> None:
    block = HeaderBlock.of({"a": "x" * (MAX_HEADER_BLOCK_BYTES - 17)}).block
    assert len(block) == MAX_HEADER_BLOCK_BYTES
    room = MAX_VALUE_BYTES + MAX_HEADERS_BYTES - len(block) - 4 - 1
    assert stream.do(*append("a", bytes(room), headers=block)) == [1, 1]
    assert stream.do(*append("a", bytes(room + 1), headers=block))[0] == "too_large"
    assert stream.do(frames.APPEND, bytes(MAX_VALUE_BYTES), block)[0] == "too_large"
    assert stream.do(*append("a" * 1024, bytes(MAX_VALUE_BYTES)))[0] == 2


def test_a_large_value_has_a_subject_too(stream: Bench) -> None:
    upload = b"u" * 16
    stream.do(frames.PUT_CHUNK, upload, 0, b"content")
    crc = stream.read(frames.UPLOAD, upload)[1]
    large = [upload, 7, bytes(32), crc]
    assert stream.do(*append("a", large, headers=BLOCK)) == [1, 2]
    assert stream.read(frames.GET_MESSAGE, 1)[3:] == (large, BLOCK, "a")
    assert stream.store.bytes == 30 + 7 + 1 + len(BLOCK) + 4 + stream.boxes(1)
    stream.do(*append("a", rollup="sub"))
    assert stream.read(frames.READ_CHUNK, upload, 0) is None


def test_appends_that_do_nothing_else_are_answered_as_a_run(stream: Bench) -> None:
    def executed(*wanted: list[Any]) -> Any:
        stream.store.begin()
        found = operations.execute(stream.store, frames.unpack(frames.pack(wanted)))
        stream.commit()
        return found

    assert executed(append("a"), append("b", headers=BLOCK)) == frames.Run(1, 1, 2)
    assert executed(append("a", msg_id="x")) == [[3, 3]]
    assert executed(append("a", msg_id="x"), append("a")) == [[3, 3, 0, True], [4, 4]]
    assert executed(append("a"), append("b", expected_last_subject_seq=9), append("a"))[2] == [6, 6]
    assert executed(append("b"), append("b", rollup="sub")) == [[7, 7], [8, 8]]
    assert executed(append("n", b"", incr="1")) == [[9, 10, None, False, "1"]]
    assert executed([frames.BATCH, [[frames.EXPECT, None, 9], append("a")]]) == [[[10], [10, 11]]]
    assert executed([frames.SET_MESSAGE, 11, b"v"]) == [[11, 12]]


# Expectations
def test_the_last_seq_of_a_subject_or_of_a_filter_can_be_expected(stream: Bench) -> None:
    fill(stream, "a.1", "b", "a.2")
    for lags in (True, False):
        if not lags:
            stream.materialise()
        wrong = stream.do(*append("a.1", expected_last_subject_seq=7))
        assert wrong[0] == "wrong_last_seq"
        assert (wrong[1]["actual"], wrong[1]["subject"]) == (1, "a.1")
        assert stream.do(*append("new", expected_last_subject_seq=1))[1]["actual"] == 0
        of = {"expected_subject": "a.*"}
        assert stream.do(*append("a.1", expected_last_subject_seq=1, **of))[1]["actual"] == 3
        assert stream.do(*append("x", expected_last_subject_seq=3, **of))[0] > 3
    stream.do(frames.DELETE_MESSAGES, [3])
    assert stream.do(*append("x", expected_last_subject_seq=1, expected_subject="a.*"))[0] == 6
    stream.do(frames.TRIM, 1)
    assert stream.do(*append("a.1", expected_last_subject_seq=0))[0] == 7


def test_the_last_msg_id_can_be_expected(stream: Bench) -> None:
    assert stream.do(*append("a", expected_last_msg_id="x"))[:1] == ["wrong_last_msg_id"]
    assert stream.do(*append("a", expected_last_msg_id="", msg_id="id-1")) == [1, 1]
    wrong = stream.do(*append("a", expected_last_msg_id="x"))
    assert wrong[1] == {"expected": "x", "actual": "id-1"}
    stream.reopen()
    assert stream.do(*append("b", expected_last_msg_id="id-1")) == [2, 2]
    assert stream.do(*append("b", expected_last_msg_id="id-1"))[1]["actual"] is None
    stream.do(frames.APPEND, b"plain")
    assert stream.do(*append("b", expected_last_msg_id=""))[0] == 4


def test_a_batch_expects_the_state_before_it(stream: Bench) -> None:
    fill(stream, "a", "b")
    batch = [
        append("a", expected_last_subject_seq=1),
        append("a", expected_last_subject_seq=1),
        append("c", expected_last_subject_seq=0),
        append("c", expected_last_subject_seq=0, rollup="sub"),
    ]
    assert [each[0] for each in stream.do(frames.BATCH, batch)] == [3, 4, 5, 6]
    assert there(stream) == ["a", "b", "a", "a", "c"]
    late = [append("b"), append("a", expected_last_subject_seq=5)]
    assert stream.do(frames.BATCH, late)[0] == "wrong_last_seq"
    assert stream.store.contents.subjects.last_seq("b") == 2


def test_too_many_subjects_for_a_filter_are_not_looked_through(
    stream: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(stream, *(f"a.{number}" for number in range(20)))
    monkeypatch.setattr(subjects, "MAX_LOOKS", 10)
    wanted = append("x", expected_last_subject_seq=20, expected_subject="a.*")
    assert stream.do(*wanted)[0] == "rate_limited"
    stream.materialise()
    assert stream.do(*wanted)[0] == "rate_limited"
    assert stream.do(*append("a.*", rollup="sub"))[0] == "rate_limited"
    assert stream.do(frames.PURGE, "a.*", None, 3)[0] == "rate_limited"
    # What needs no looking through is not affected, and the next turn has as many looks again.
    assert stream.do(*append("x", expected_last_subject_seq=20, expected_subject="a.19"))[0] == 21
    monkeypatch.setattr(subjects, "MAX_LOOKS", 1000)
    assert stream.do(*append("x", expected_last_subject_seq=20, expected_subject="a.*"))[0] == 22


def test_a_purge_goes_on_where_the_last_one_stopped(
    stream: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(stream, *(f"{'ab'[number % 2]}.{number}" for number in range(40)))
    stream.materialise()
    monkeypatch.setattr(purging, "MAX_PURGED_MESSAGES", 8)
    counts = []
    for _ in range(9):
        count, _, more = stream.do(frames.PURGE, "a.*")
        counts.append(count)
        if not more:
            break
    assert counts == [8, 8, 4]
    assert set(there(stream)) == {f"b.{number}" for number in range(1, 40, 2)}
    monkeypatch.setattr(subjects, "MAX_LOOKS", 0)
    assert stream.tick([frames.PURGE, "b.*"]) == [[0, stream.store.revision, True]]


def test_many_small_purges_fit_in_one_turn(stream: Bench) -> None:
    fill(stream, *(f"{'ab'[number % 2]}.{number % 8}" for number in range(64)))
    stream.materialise()
    purges = [[frames.PURGE, "a.*", None, keep] for keep in range(31, 0, -1)]
    results = stream.tick(*purges)
    # Each removes one message, and has looked at a few.
    assert [(count, more) for count, _, more in results] == [(1, False)] * 31
    assert there(stream).count("a.6") == 1


def test_purges_that_find_nothing_pay_for_what_they_looked_at(
    stream: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(stream, *(f"a.{number}" for number in range(50)))
    stream.materialise()
    monkeypatch.setattr(subjects, "MAX_LOOKS", 500)
    results = stream.tick(*([frames.PURGE, "*.none"] for _ in range(30)))
    assert results[0] == [0, stream.store.revision, False]
    # Who comes when the turn has no looks left is asked to come again.
    assert results[-1][0] == "rate_limited"


# Heads
def test_the_head_of_a_stream_with_settings_alone_needs_no_file(stream: Bench) -> None:
    def in_memory() -> Any:
        return reads.head_without_file(stream.store, "s1", [[frames.HEAD], [frames.HEAD]])

    configure(stream, description="orders", max_messages_per_subject=3)
    stream.time += 5
    assert stream.do(frames.SET_CURSOR, "c", None, b"config", b"state") == [2]
    found = in_memory()
    assert stream.store.file is None
    assert found == [stream.read(frames.HEAD)] * 2
    assert stream.store.file is not None and in_memory() is None


@pytest.mark.parametrize("settings", [{"first_seq": 7}, {}])
def test_the_head_of_other_streams_comes_from_their_files(
    stream: Bench, settings: dict[str, Any]
) -> None:
    configure(stream, description="orders", **settings)
    if not settings:
        assert reads.head_without_file(stream.store, "s1", [[frames.HEAD], [frames.CONFIG]]) is None
        fill(stream, "a")
    assert reads.head_without_file(stream.store, "s1", [[frames.HEAD]]) is None


# Roll-ups
def test_a_rollup_leaves_only_itself(stream: Bench) -> None:
    fill(stream, "a", "b", "a", "a.1")
    stream.do(*append("a", rollup="sub"))
    assert there(stream) == ["b", "a.1", "a"]
    assert changes_of(stream)[-1] == [CHANGE_DELETE_MESSAGES, [1, 3]]
    stream.do(*append("a.*", rollup="sub"))
    assert there(stream) == ["b", "a", "a.*"]
    stream.do(*append("c", rollup="all"))
    assert there(stream) == ["c"]
    assert changes_of(stream)[-1] == [CHANGE_TRIM, 6]


def test_a_rollup_of_everything_is_a_trim_unless_it_is_in_a_batch(stream: Bench) -> None:
    fill(stream, "a", "a")
    stream.do(*append("a", rollup="sub"))
    assert changes_of(stream)[-1] == [CHANGE_TRIM, 2]
    stream.do(frames.BATCH, [append("a"), append("a", rollup="sub"), append("b", rollup="all")])
    assert there(stream) == ["b"]


def test_a_rollup_of_too_much_is_refused(stream: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(stream, "a", "a", "a", "b")
    monkeypatch.setattr(appending, "MAX_ROLLED_UP_MESSAGES", 2)
    for rollup in (append("a", rollup="sub"), append("*", rollup="sub")):
        assert stream.do(*rollup)[0] == "too_large"
    assert stream.do(frames.BATCH, [append("b"), append("b", rollup="all")])[0] == "too_large"
    assert there(stream) == ["a", "a", "a", "b"]
    assert stream.do(*append("b", rollup="all"))[0] == 5


# Removing
def test_a_purge_by_subject_by_seq_and_with_some_kept(stream: Bench) -> None:
    fill(stream, "a", "b", "a", "c.1", "a", "c.2", "a", "c.1")
    assert stream.do(frames.PURGE, "a", 4) == [2, 9, False]
    assert stream.do(frames.PURGE, "a", None, 1) == [1, 10, False]
    assert stream.do(frames.PURGE, "c.>", None, 2) == [1, 11, False]
    assert there(stream) == ["b", "c.2", "a", "c.1"]
    assert stream.do(frames.PURGE, "nothing") == [0, 11, False]
    assert stream.do(frames.PURGE, None, 7) == [2, 12, False]
    fill(stream, "x", "y", "z")
    assert stream.do(frames.PURGE, None, None, 2) == [3, 16, False]
    assert there(stream) == ["y", "z"]
    assert stream.do(frames.PURGE) == [2, 17, False]
    assert stream.do(frames.PURGE, ">") == [0, 17, False]
    assert stream.do(frames.PURGE, None, None, 2) == [0, 17, False]


def test_a_large_purge_is_called_again(stream: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purging, "MAX_PURGED_MESSAGES", 3)
    monkeypatch.setattr(purging, "MAX_DELETE_COUNT", 2)
    fill(stream, *"aababaabaa")
    assert stream.do(frames.PURGE, "a") == [3, 12, True]
    assert stream.do(frames.PURGE, "a", None, 1) == [3, 14, False]
    assert stream.do(frames.PURGE, None, None, 1) == [3, 15, False]
    fill(stream, *"abcde")
    assert stream.do(frames.PURGE, None, None, 1) == [3, 21, True]
    assert stream.do(frames.PURGE, None, None, 1) == [2, 22, False]
    assert there(stream) == ["e"]


def test_what_the_file_has_removed_too_is_not_counted_twice(stream: Bench) -> None:
    fill(stream, "a", "a", "b")
    stream.materialise()
    stream.do(frames.DELETE_MESSAGES, [1])
    for _ in range(2):
        bad = [append("b"), [frames.EXPECT, None, 99]]
        assert stream.do(frames.BATCH, bad)[0] == "wrong_last_seq"
        assert stream.store.contents.subjects.count("a") == 1
        stream.materialise()


# Settings
def test_settings_that_deny_name_themselves(stream: Bench) -> None:
    fill(stream, "a", "b")

    def denied(*operation: Any) -> Any:
        code, fields = stream.do(*operation)
        assert code == "denied"
        return fields["setting"]

    configure(stream, deny_delete=True)
    assert denied(frames.DELETE_MESSAGES, [1]) == "deny_delete"
    assert denied(frames.SET_MESSAGE, 1, b"v") == "deny_delete"
    assert stream.do(frames.SET_MESSAGE, 3, b"v")[0] == 3
    assert stream.do(frames.PURGE, "a")[0] == 1
    configure(stream, deny_delete=None, deny_purge=True)
    assert denied(frames.PURGE, "b") == denied(frames.TRIM, 1) == "deny_purge"
    assert denied(*append("b", rollup="sub")) == denied(*append("b", rollup="all")) == "deny_purge"
    assert stream.do(frames.DELETE_MESSAGES, [3])[0] == 1
    configure(stream, deny_purge=False, sealed=True)
    sealed = [
        append("a"), [frames.APPEND, b"v"], [frames.SET_MESSAGE, 9, b"v"], [frames.TRIM],
        [frames.DELETE_MESSAGES, [2]], [frames.PURGE],
    ]  # fmt: skip
    assert [denied(*each) for each in sealed if each[0] != 2] == ["sealed"] * 5
    assert stream.tick([frames.APPEND, b"v"], [frames.APPEND, b"v"])[0][0] == "denied"
    assert there(stream) == ["b"]


def test_a_serving_epoch_only_grows_and_fences_writers(stream: Bench) -> None:
    assert configure(stream, serving_epoch=3)[1] == {"serving_epoch": 3}
    for epoch in (3, 2, None):
        refused = configure(stream, serving_epoch=epoch)
        assert refused == ["deposed_writer", {"serving_epoch": epoch, "actual": 3}]
    assert stream.do(*append("a", serving_epoch=3))[0] == 1
    assert stream.do(*append("a"))[0] == 2
    stream.reopen()
    configure(stream, serving_epoch=7)
    for operation in (
        append("a", serving_epoch=3),
        [frames.DELETE_MESSAGES, [1], 3],
        [frames.PURGE, None, None, None, 3],
        [frames.CONFIGURE, {"max_messages": 5}, 3],
        [frames.BATCH, [append("a", serving_epoch=3)]],
    ):
        refused = stream.do(*operation)
        assert refused == ["deposed_writer", {"serving_epoch": 3, "actual": 7}]
    assert stream.do(frames.CONFIGURE, {"max_messages": 5}, 7)[1]["max_messages"] == 5
    assert stream.do(frames.PURGE, None, None, None, 7)[0] == 2


def test_seqs_begin_where_the_stream_is_configured_to(stream: Bench) -> None:
    configure(stream, first_seq=100)
    head = stream.read(frames.HEAD)
    assert head[1:4] == [100, 99, 0]
    assert configure(stream, first_seq=200)[0] == 2
    assert configure(stream, first_seq=150)[0] == "invalid_argument"
    stream.tick([frames.CONFIGURE, {"first_seq": 500}], commit=False)
    stream.fail_over()
    assert stream.do(*append("a"))[0] == 200
    assert configure(stream, first_seq=300)[0] == "invalid_argument"
    assert configure(stream, first_seq=None)[0] == "invalid_argument"
    configure(stream, first_seq=200, max_messages=5)
    assert stream.do(*append("a", expected_last_subject_seq=200))[0] == 201
    assert stream.do(frames.SET_MESSAGE, 7, b"below")[0] == 7
    assert stream.read(frames.HEAD)[1:4] == [7, 201, 3]
    stream.reopen()
    assert (stream.store.last_seq, there(stream)) == (201, [None, "a", "a"])


def test_a_replayed_log_gives_the_same_file(stream: Bench, tmp_path: Path) -> None:
    configure(stream, max_messages_per_subject=2, first_seq=10, subject_marker_seconds=5)
    stream.tick(*(append(name, headers=BLOCK, ttl_seconds=3) for name in "abacaab"))
    stream.time += 4000
    stream.do(*append("a", rollup="sub"))
    file = StoreFile.create(tmp_path / "again.db", stream.id, time=0)
    for record in stream.records:
        for payload in record.payloads:
            epoch, previous, time, changes, _ = frames.decode_changes(payload)
            assert epoch == 1
            file.apply([AppliedBatch(previous, time, changes)])
    stream.materialise()
    assert list(file.messages(1, None, 99)) == list(file_of(stream.store).messages(1, None, 99))
    assert file.meta.count == stream.store.count
    assert file.subjects.damage() == ""
    file.abandon()


def test_a_kv_knows_nothing_of_subjects(tmp_path: Path) -> None:
    with closing(Bench(tmp_path, StoreKind.KV)) as kv:
        assert kv.do(frames.PURGE)[0] == "unknown_operation"
        for setting in ("max_messages_per_subject", "first_seq", "serving_epoch"):
            assert configure(kv, **{setting: 5})[0] == "invalid_argument"
        assert configure(kv, max_messages=5)[0] == 1
        assert changes_of(kv) == [[CHANGE_CONFIGURE, {"max_messages": 5}]]

"""What limits and time remove from a store: on a real file, tick by tick."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.persist.operations import eviction
from holdfast.persist.store.retention import NEVER
from holdfast.protocol import frames
from holdfast.protocol.changes import (
    CHANGE_CONFIGURE,
    CHANGE_DELETE_ENTRIES,
    CHANGE_SET_ENTRY,
    CHANGE_SET_MESSAGE,
    CHANGE_TRIM,
    REASON_LIMIT,
    REASON_TTL,
)
from holdfast.protocol.limits import MAX_DELETE_COUNT, MAX_EVICTED_ROWS, MAX_EXPIRED_ROWS
from holdfast.protocol.names import StoreKind
from holdfast.shared_fs.store_file.reading.going_rows import GoingRow
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.ticked_store import Bench, append, configure, put


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Bench]:
    with closing(Bench(tmp_path, StoreKind.STREAM)) as bench:
        yield bench


@pytest.fixture
def kv(tmp_path: Path) -> Iterator[Bench]:
    with closing(Bench(tmp_path, StoreKind.KV)) as bench:
        yield bench


# CoCalc's defects, by number
@pytest.mark.parametrize("discard", ["old", "new"])
@pytest.mark.parametrize("limit", ["max_bytes", "max_message_bytes"])
def test_d1_a_refused_message_evicts_nothing(stream: Bench, limit: str, discard: str) -> None:
    configure(stream, discard=discard, **{limit: 30})
    for _ in range(3):
        stream.do(*append(bytes(10)))
    before = stream.read(frames.HEAD)
    broadcast_count = len(stream.broadcasts)
    assert stream.do(*append(bytes(31)))[0] == "limit_exceeded"
    assert stream.read(frames.HEAD) == before
    assert stream.broadcasts[broadcast_count:] == [[]]


@pytest.mark.parametrize("discard", ["old", "new"])
def test_d2_overwriting_a_key_does_not_count_twice(kv: Bench, discard: str) -> None:
    configure(kv, max_messages=2, max_bytes=22, discard=discard)
    kv.do(*put("a", bytes(10)))
    kv.do(*put("b", bytes(10)))
    for _ in range(3):
        assert kv.do(*put("a", bytes(10)))[0] == 0
    assert list(kv.rows()) == ["a", "b"]
    assert kv.read(frames.HEAD)[3:5] == [2, 22]


def test_d13_evictions_name_the_keys_that_went(kv: Bench) -> None:
    configure(kv, max_messages=2)
    for key in ("a", "b", "c"):
        kv.do(*put(key))
    eviction = [CHANGE_DELETE_ENTRIES, ["a"], REASON_LIMIT]
    assert kv.broadcasts[-1] == [[CHANGE_SET_ENTRY, "c", b"v"], eviction]
    kv.do(*put("d", b"v", 1))
    kv.time += 1000
    assert kv.read(frames.GET_ENTRY, "d") is None
    assert kv.broadcasts[-1] == [[CHANGE_DELETE_ENTRIES, ["d"], REASON_TTL]]


@pytest.mark.parametrize("kind", StoreKind)
@pytest.mark.parametrize("by", ["age", "ttl"])
def test_d22_what_has_expired_is_not_readable_though_nobody_wrote_since(
    tmp_path: Path, kind: StoreKind, by: str
) -> None:
    bench = Bench(tmp_path, kind)
    write = append if bench.store.is_stream else lambda *rest: put("k", *rest)
    if by == "age":
        configure(bench, max_age_seconds=1)
        bench.do(*write(b"v"))
    else:
        bench.do(*write(b"v", 1))
    bench.time += 999
    assert list(bench.rows().values()) == [b"v"]
    bench.time += 1
    assert bench.rows() == {}
    assert bench.read(frames.HEAD)[3:5] == [0, 0]
    bench.close()


# Totals
def test_the_lowest_seqs_go_in_the_tick_that_needs_their_room(stream: Bench) -> None:
    configure(stream, max_messages=3)
    results = stream.tick(*[append(b"%d" % number) for number in range(5)])
    assert [result[0] for result in results] == [1, 2, 3, 4, 5]
    assert stream.broadcasts[-1][-1] == [CHANGE_TRIM, 2, REASON_LIMIT]
    assert stream.rows() == {3: b"2", 4: b"3", 5: b"4"}
    stream.do(*append(b"5"))
    assert stream.broadcasts[-1] == [[CHANGE_SET_MESSAGE, 6, b"5"], [CHANGE_TRIM, 3, REASON_LIMIT]]
    assert stream.read(frames.HEAD)[:5] == [9, 4, 6, 3, 3]


def test_bytes_are_counted_with_headers_and_keys(stream: Bench, kv: Bench) -> None:
    configure(stream, max_bytes=10)
    for _ in range(2):
        stream.do(frames.APPEND, b"1234", {"h": "x"})
    # The value and the five bytes of its packed headers: one fits.
    assert list(stream.rows()) == [2]
    configure(kv, max_bytes=10)
    kv.do(*put("aa", b"123"))
    kv.do(*put("bb", b"123"))
    assert list(kv.rows()) == ["aa", "bb"]
    kv.do(*put("bb", b"1234"))
    assert list(kv.rows()) == ["bb"]


def test_the_keys_that_were_set_longest_ago_go_first(kv: Bench) -> None:
    for key in ("a", "b", "c", "a"):
        kv.do(*put(key))
    configure(kv, max_messages=2)
    assert list(kv.rows()) == ["a", "c"]
    kv.reopen()
    kv.do(*put("d"))
    assert list(kv.rows()) == ["a", "d"]


def test_what_is_over_goes_when_the_limit_comes(stream: Bench) -> None:
    stream.tick(*[append() for _ in range(10)])
    revision, config = configure(stream, max_messages=4)
    assert (revision, config) == (11, {"max_messages": 4})
    configured = [CHANGE_CONFIGURE, {"max_messages": 4}]
    assert stream.broadcasts[-1] == [configured, [CHANGE_TRIM, 6, REASON_LIMIT]]


def test_a_store_that_discards_new_keeps_what_it_has(stream: Bench) -> None:
    stream.tick(*[append() for _ in range(5)])
    configure(stream, max_messages=3, discard="new")
    refused = stream.do(*append())
    assert refused == ["limit_exceeded", {"what": "max_messages", "limit": 3, "value": 6}]
    assert len(stream.rows()) == 5
    # Replacing is no growth, and what is deleted makes room.
    assert stream.do(frames.SET_MESSAGE, 5, b"w")[0] == 5
    stream.do(frames.TRIM, 3)
    assert stream.do(*append())[0] == 6


def test_of_plain_appends_at_once_those_that_fit_are_stored(stream: Bench) -> None:
    configure(stream, max_messages=2, discard="new")
    results = stream.tick(append(b"a"), append(b"b"), append(b"c"))
    assert results[:2] == [[1, 2], [2, 3]]
    assert results[2][0] == "limit_exceeded"


def test_a_huge_excess_goes_in_several_turns(stream: Bench) -> None:
    count = MAX_EVICTED_ROWS + 10
    for start in range(0, count, 4096):
        stream.tick(*[append() for _ in range(min(4096, count - start))])
    configure(stream, max_messages=1)
    assert stream.store.count > 1
    assert stream.store.retention is not None
    assert stream.store.retention.due_at == 0
    assert list(stream.rows()) == [count]
    assert all(len(changes) <= 6 for changes in stream.broadcasts[-2:])


def test_what_is_trimmed_but_still_in_the_file_is_not_read_again(
    stream: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.tick(*[append() for _ in range(2000)])
    stream.materialise()
    configure(stream, max_messages=10)
    read: list[int] = []
    going = StoreFile.going

    def counted(file: StoreFile, *arguments: Any) -> Iterator[GoingRow]:
        for row in going(file, *arguments):
            read.append(row.key)
            yield row

    monkeypatch.setattr(StoreFile, "going", counted)
    for _ in range(5):
        stream.do(*append())
    assert read == [1991, 1992, 1993, 1994, 1995]
    assert list(stream.rows()) == list(range(1996, 2006))


def test_a_huge_number_of_keys_expires_in_several_turns(kv: Bench) -> None:
    count = MAX_EXPIRED_ROWS + 10
    for start in range(0, count, 4096):
        kv.tick(*[put(f"{n}") for n in range(start, min(start + 4096, count))])
    configure(kv, max_age_seconds=5)
    kv.time += 5000
    assert not eviction.expire(kv.store, kv.time)
    kv.commit()
    assert all(len(change[1]) <= MAX_DELETE_COUNT for change in kv.broadcasts[-1])
    assert kv.rows() == {}


# Batches
@pytest.mark.parametrize("discard", ["old", "new"])
def test_a_batch_that_cannot_be_kept_whole_changes_nothing(kv: Bench, discard: str) -> None:
    configure(kv, max_messages=2, discard=discard)
    kv.do(*put("a"))
    revision = kv.store.revision
    refused = kv.do(frames.BATCH, [put("b"), put("c"), put("d")])
    assert refused[0] == "limit_exceeded"
    assert (list(kv.rows()), kv.store.revision) == (["a"], revision)


def test_a_batch_pushes_older_keys_out_as_a_whole(kv: Bench) -> None:
    configure(kv, max_messages=2)
    kv.tick(put("a"), put("b"))
    kv.do(frames.BATCH, [put("c"), put("d")])
    assert list(kv.rows()) == ["c", "d"]
    assert kv.broadcasts[-1][-1] == [CHANGE_DELETE_ENTRIES, ["a", "b"], REASON_LIMIT]


def test_a_batch_is_judged_by_what_it_leaves(kv: Bench) -> None:
    configure(kv, max_messages=2, discard="new")
    kv.tick(put("a"), put("b"))
    swapped = kv.do(frames.BATCH, [put("c"), [frames.DELETE_ENTRIES, ["a"]]])
    assert swapped[1][0] == 1
    assert list(kv.rows()) == ["b", "c"]
    assert kv.do(frames.BATCH, [put("d")])[0] == "limit_exceeded"


def test_a_msg_id_is_forgotten_with_the_age_of_its_message(stream: Bench) -> None:
    configure(stream, max_age_seconds=10, dedupe_window_seconds=3600)
    first = [frames.APPEND, b"v", None, "id"]
    seq, *_ = stream.do(*first)
    stream.time += 9_999
    assert stream.do(*first)[3] is True
    stream.time += 1
    again, *rest = stream.do(*first)
    assert (again, len(rest)) == (seq + 1, 1), "not answered with a seq that is gone"
    assert list(stream.rows()) == [again]


def test_a_refused_batch_with_a_ttl_leaves_no_trace(stream: Bench) -> None:
    batch = [append(b"v", 1), [frames.SET_MESSAGE, 99, b"w"]]
    assert stream.do(frames.BATCH, batch)[0] == "invalid_seq"
    assert stream.store.retention is None


def test_a_batch_counts_against_the_rate_once_and_as_a_whole(stream: Bench) -> None:
    configure(stream, max_messages_per_second=4)
    stream.do(*append())
    assert stream.do(frames.BATCH, [append() for _ in range(4)])[0] == "rate_limited"
    assert len(stream.do(frames.BATCH, [append() for _ in range(3)])) == 3
    assert stream.do(*append())[0] == "rate_limited"
    stream.time += 1000
    assert stream.do(*append())[0] == 5


# Time
def test_each_ttl_ends_by_itself(stream: Bench) -> None:
    for ttl_seconds in (3, None, 1, 2):
        stream.do(*append(b"v", ttl_seconds))
    stream.time += 1000
    assert list(stream.rows()) == [1, 2, 4]
    stream.time += 1000
    assert list(stream.rows()) == [1, 2]
    stream.reopen()
    stream.time += 1000
    assert list(stream.rows()) == [2]
    assert stream.broadcasts[-1] == [[CHANGE_TRIM, 1, REASON_TTL]]
    assert stream.store.retention is not None
    assert stream.store.retention.due_at == NEVER


def test_a_ttl_longer_than_the_age_of_its_store_makes_nothing_live_longer(
    stream: Bench, kv: Bench
) -> None:
    for bench, operation in ((kv, put("k", b"v", 20)), (stream, append(b"v", 20))):
        configure(bench, max_age_seconds=10)
        bench.do(*operation)
        bench.time += 10_000
        assert bench.rows() == {}


def test_the_front_of_a_stream_ages_by_a_trim(stream: Bench) -> None:
    configure(stream, max_age_seconds=10)
    for _ in range(5):
        stream.do(*append())
        stream.time += 1000
    stream.time = 12_500
    assert list(stream.rows()) == [3, 4, 5]
    assert stream.broadcasts[-1] == [[CHANGE_TRIM, 2, REASON_TTL]]


def test_a_replaced_message_ages_from_its_replacement_on(stream: Bench) -> None:
    configure(stream, max_age_seconds=10)
    for _ in range(3):
        stream.do(*append())
    stream.time += 5000
    stream.do(frames.SET_MESSAGE, 1, b"new")
    stream.do(frames.SET_MESSAGE, 3, b"new")
    for reopened in (False, True):
        if reopened:
            stream.reopen()
        stream.time = 11_000
        assert list(stream.rows()) == [1, 3]
    stream.time = 16_000
    assert list(stream.rows()) == []


def test_setting_a_key_again_without_a_ttl_keeps_it(kv: Bench) -> None:
    kv.do(*put("a", b"1", 1))
    kv.do(*put("a", b"2"))
    kv.reopen()
    kv.do(*put("b", b"1", 1))
    kv.reopen()
    kv.do(*put("b", b"2"))
    kv.time += 5000
    assert kv.rows() == {"a": b"2", "b": b"2"}


def test_an_expired_key_can_be_created_again(kv: Bench) -> None:
    create = [frames.SET_ENTRY, "lock", b"mine", None, 0, 2]
    assert kv.do(*create)[0] == 0
    assert kv.do(*create)[0] == "wrong_revision"
    kv.time += 2000
    assert kv.do(*create)[0] == 0


def test_what_expired_makes_room_in_a_store_that_discards_new(kv: Bench) -> None:
    configure(kv, max_messages=1, discard="new")
    kv.do(*put("a", b"v", 1))
    assert kv.do(*put("b"))[0] == "limit_exceeded"
    kv.time += 1000
    assert kv.do(*put("b"))[0] == 0


def test_a_store_that_was_closed_expires_when_it_is_opened(kv: Bench) -> None:
    kv.do(*put("a", b"v", 1))
    kv.do(*put("b"))
    kv.reopen()
    kv.time += 1_000_000
    kv.reopen()
    assert list(kv.rows()) == ["b"]


def test_a_clock_that_goes_back_brings_nothing_back_and_expires_nothing_early(kv: Bench) -> None:
    kv.do(*put("a", b"v", 10))
    kv.time = 0
    kv.do(*put("b", b"v", 10))
    kv.time = 9_999
    assert list(kv.rows()) == ["a", "b"]
    kv.time = 10_000
    assert list(kv.rows()) == []


def test_an_expiry_that_did_not_reach_the_log_is_done_again(kv: Bench) -> None:
    kv.do(*put("a", b"v", 1))
    kv.time += 1000
    kv.tick(put("b"), commit=False)
    assert (kv.store.count, kv.store.revision) == (1, 1)
    assert kv.rows() == {}


def test_a_configuration_that_did_not_reach_the_log_does_not_hold(stream: Bench) -> None:
    stream.tick([frames.CONFIGURE, {"max_messages": 1}], commit=False)
    assert stream.store.retention is None
    configure(stream, max_messages=5)
    stream.tick([frames.CONFIGURE, {"max_messages": 1}], commit=False)
    assert stream.store.config.max_messages == 5


# The configuration in the store
def test_the_configuration_is_kept_and_answered(stream: Bench) -> None:
    assert stream.read(frames.CONFIG) == {}
    assert configure(stream, max_messages=9, description="ours") == [
        1,
        {"max_messages": 9, "description": "ours"},
    ]
    assert configure(stream, max_messages=None, max_bytes=5) == [
        2,
        {"max_bytes": 5, "description": "ours"},
    ]
    stream.reopen()
    assert stream.read(frames.CONFIG) == {"max_bytes": 5, "description": "ours"}
    assert stream.store.config.max_bytes == 5


def test_configuring_what_is_so_already_makes_no_change(stream: Bench) -> None:
    configure(stream, max_messages=9)
    assert configure(stream, max_messages=9) == [1, {"max_messages": 9}]
    assert configure(stream) == [1, {"max_messages": 9}]


def test_a_store_that_lost_its_limits_pays_for_none(stream: Bench) -> None:
    configure(stream, max_messages=9)
    configure(stream, max_messages=None)
    assert stream.store.retention is None
    stream.reopen()
    assert stream.store.retention is None


def test_a_follower_reads_the_configuration_among_the_changes(stream: Bench) -> None:
    stream.do(*append())
    configure(stream, max_messages=9)
    changes = stream.read(frames.CHANGES, 1, 1)[0]
    assert changes == [(2, 1000, [CHANGE_CONFIGURE, {"max_messages": 9}])]


@pytest.mark.parametrize("wrong", [[None], [[]], [{"max_messages": 0}], [{"what": 1}], [7], []])
def test_a_configuration_that_makes_no_sense_is_refused(stream: Bench, wrong: list[Any]) -> None:
    assert stream.do(frames.CONFIGURE, *wrong)[0] in ("invalid_argument", "malformed_frame")
    assert stream.store.revision == 0


def test_a_kv_has_no_msg_ids_to_remember(kv: Bench) -> None:
    assert configure(kv, dedupe_window_seconds=5)[0] == "invalid_argument"


def test_a_msg_id_is_remembered_for_the_store_s_own_window(stream: Bench) -> None:
    configure(stream, dedupe_window_seconds=5)
    stream.do(frames.APPEND, b"v", None, "id")
    stream.time += 4999
    assert stream.do(frames.APPEND, b"v", None, "id")[0] == 1
    stream.time += 1
    assert stream.do(frames.APPEND, b"v", None, "id")[0] == 2
    configure(stream, dedupe_window_seconds=0)
    assert stream.do(frames.APPEND, b"v", None, "id")[0] == 3


@pytest.mark.parametrize("wrong", [0, -1, "1", float("nan"), 1e300])
def test_a_ttl_that_makes_no_sense_is_refused(stream: Bench, kv: Bench, wrong: Any) -> None:
    assert stream.do(frames.APPEND, b"v", None, None, None, wrong)[0] == "invalid_argument"
    assert stream.do(frames.SET_MESSAGE, 1, b"v", None, wrong)[0] == "invalid_argument"
    assert kv.do(frames.SET_ENTRY, "k", b"v", None, None, wrong)[0] == "invalid_argument"

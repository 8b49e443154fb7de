"""A tick: what it answers, what it logs, and that a failure takes all of it back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.persist.store.open_stores import Arrival
from holdfast.persist.store.store import Store
from holdfast.persist.write_path.tick import Tick
from holdfast.protocol import frames
from holdfast.protocol.errors import StorageFailedError
from holdfast.protocol.limits import (
    FRAME_RESERVE_BYTES,
    MAX_HEADERS_BYTES,
    MAX_VALUE_BYTES,
    MAX_WRITER_OUTCOMES,
    MIN_PAYLOAD_BYTES,
)
from holdfast.protocol.messages import Durability
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.effort import examples
from tests.support.stores import abandon, file_of, store_of
from tests.support.tenant_keys import KEYS, encrypt

FULL = StorageFailedError(reason="full")


def store_named(name: str, kind: StoreKind = StoreKind.STREAM) -> Store:
    return store_of(StoreId("acme", kind, name), 7)


def arrival(
    store: Store,
    counter: int,
    *wanted: list[Any],
    first_unacked: int = 1,
    reply: str = "reply",
    position: int = 0,
    durability: int = Durability.DEFAULT,
    writer: bytes = b"w",
) -> Arrival:
    name, kind = store.id.name, store.id.kind
    group = frames.Group(kind, name, counter, min(first_unacked, counter), durability, list(wanted))
    return Arrival(reply, position, writer, store.id, group)


def append(value: bytes = b"v") -> list[Any]:
    return [frames.APPEND, value]


def new_tick(number: int = 1, default: Durability = Durability.SYNCED) -> Tick:
    return Tick(number, 1000 + number, default)


def commit(tick: Tick) -> None:
    assert tick.records()
    tick.committed(segment=1)


def committed(number: int, store: Store, *arrivals: Arrival) -> Tick:
    """Return a tick that the log took, with writes to one store."""
    tick = new_tick(number)
    for each in arrivals:
        tick.write(store, each)
    commit(tick)
    return tick


def outcome_of(answers: dict[str, list[list[Any]]], reply: str = "reply") -> frames.Outcome:
    (element,) = answers[reply]
    assert element[1] == 0
    return frames.decode_outcome(element[2])


def codes(answers: dict[str, list[list[Any]]]) -> dict[str, list[str]]:
    """Return the answers by reply: `ok` or the code of the refusal."""
    return {
        reply: ["ok" if each[1] == 0 else each[2] for each in elements]
        for reply, elements in answers.items()
        if elements
    }


def test_a_write_is_answered_logged_and_broadcast_with_the_same_bytes() -> None:
    store, tick = store_named("a"), new_tick()
    tick.write(store, arrival(store, 1, append(b"x"), append(b"y")))
    (record,) = tick.records()
    tick.committed(segment=3)
    assert outcome_of(tick.synced) == (7, 1001, Durability.SYNCED, frames.Run(1, 1, 2))
    assert record[:4] == (store.id, 7, 0, 2)
    assert tick.broadcasts == [(store, record.payloads[0])]
    changes = frames.decode_changes(record.payloads[0])
    assert changes == (7, 0, 1001, [[1, 1, b"x"], [1, 2, b"y"]], None)
    assert [list(kept) for kept in record.outcomes] == [
        [b"w", 1, 1, 1001, tick.synced["reply"][0][2]]
    ]
    assert tick.wait_for == 1
    assert [kept.segment for kept in store.pending.ticks] == [3]
    store.validate()


def test_a_tick_without_writes_has_no_record_and_waits_for_none_of_its_own() -> None:
    store, tick = store_named("a"), new_tick(5)
    tick.read(store, arrival(store, 0, [frames.HEAD]))
    assert tick.records() == []
    assert tick.wait_for == 0


def test_groups_of_many_stores_make_one_record_each() -> None:
    stores, tick = [store_named(name) for name in "abc"], new_tick()
    for counter in (1, 2):
        for store in stores:
            tick.write(store, arrival(store, counter, append()))
    assert [(each.store, each.revision) for each in tick.records()] == [
        (store.id, 2) for store in stores
    ]


def test_a_group_whose_operations_all_failed_is_kept_for_its_retry() -> None:
    store, tick = store_named("a"), new_tick()
    tick.write(store, arrival(store, 1, [frames.SET_MESSAGE, 9, b""]))
    (record,) = tick.records()
    assert (record.previous_revision, record.revision, record.payloads) == (0, 0, [])
    assert len(record.outcomes) == 1
    assert tick.broadcasts == []


def test_the_time_of_a_store_never_goes_back() -> None:
    store = store_named("a")
    for number, time in ((1, 2000), (2, 1500)):
        tick = Tick(number, time, Durability.SYNCED)
        tick.write(store, arrival(store, number, append()))
        commit(tick)
        assert outcome_of(tick.synced).time == 2000


# Retries
def test_a_retry_in_the_same_tick_gets_the_same_answer() -> None:
    store, tick = store_named("a"), new_tick()
    for reply in ("one", "two"):
        tick.write(store, arrival(store, 1, append(), reply=reply))
    commit(tick)
    assert tick.synced["one"] == tick.synced["two"]
    assert store.last_seq == 1


def test_a_retry_of_a_group_that_is_not_synced_waits_for_its_sync() -> None:
    store = store_named("a")
    first = committed(4, store, arrival(store, 1, append()))
    retry = new_tick(5)
    retry.write(store, arrival(store, 1, append()))
    assert retry.records() == []
    assert retry.synced == first.synced
    assert retry.wait_for == 4


def test_a_retry_of_an_applied_group_waits_too() -> None:
    store = store_named("a")
    committed(4, store, arrival(store, 1, append(), durability=Durability.APPLIED))
    retry = new_tick(5)
    retry.write(store, arrival(store, 1, append(), durability=Durability.APPLIED))
    assert (codes(retry.synced), retry.applied, retry.wait_for) == ({"reply": ["ok"]}, {}, 4)


def test_groups_out_of_order_are_refused_and_change_nothing() -> None:
    store = store_named("a")
    gap, late = arrival(store, 2, append(), reply="gap"), arrival(store, 3, append(), reply="stale")
    tick = committed(1, store, gap, arrival(store, 5, append(), first_unacked=5), late)
    assert codes(tick.synced) == {"gap": ["writer_gap"], "reply": ["ok"], "stale": ["stale_write"]}
    assert store.last_seq == 1


# Durability
def test_what_was_only_to_be_applied_is_answered_apart_but_broadcast_after_the_sync() -> None:
    store, tick = store_named("a"), new_tick()
    tick.write(store, arrival(store, 1, append(), reply="fast", durability=Durability.APPLIED))
    tick.write(store, arrival(store, 2, append(), reply="safe", durability=Durability.SYNCED))
    commit(tick)
    assert outcome_of(tick.applied, "fast").durability == Durability.APPLIED
    assert outcome_of(tick.synced, "safe").durability == Durability.SYNCED
    assert (set(tick.applied), set(tick.synced)) == ({"fast"}, {"safe"})
    assert len(tick.broadcasts) == 1


def test_who_does_not_say_gets_the_servers_default() -> None:
    store, tick = store_named("a"), new_tick(default=Durability.APPLIED)
    tick.write(store, arrival(store, 1, append()))
    assert outcome_of(tick.applied).durability == Durability.APPLIED


@pytest.mark.parametrize("level", [Durability.STORED, 4, -1, 1 << 40])
def test_a_level_that_is_not_offered_is_refused_and_nothing_is_stored(level: int) -> None:
    store, tick = store_named("a"), new_tick()
    tick.write(store, arrival(store, 1, append(), durability=level))
    assert codes(tick.synced) == {"reply": ["invalid_argument"]}
    assert tick.records() == []
    # The writer's next try of the same group is new.
    tick.write(store, arrival(store, 1, append(), reply="again"))
    assert codes(tick.synced)["again"] == ["ok"]


# Failures
def test_a_log_that_refuses_takes_every_store_back_and_refuses_every_write() -> None:
    stores, tick = [store_named("a"), store_named("b")], new_tick(2)
    for store in stores:
        committed(1, store, arrival(store, 1, append()))
    for position, store in enumerate(stores):
        tick.write(store, arrival(store, 2, append(), reply=store.id.name))
        fast = arrival(store, 3, append(), reply="fast", durability=Durability.APPLIED)
        tick.write(store, fast._replace(position=position))
    tick.write(stores[0], arrival(stores[0], 1, append(), reply="retry of before"))
    assert tick.records()
    tick.fail(FULL)
    refused = "storage_failed"
    assert codes(tick.synced) == {
        "a": [refused], "b": [refused], "fast": [refused, refused], "retry of before": ["ok"],
    }  # fmt: skip
    assert codes(tick.applied) == {}
    assert tick.broadcasts == []
    for store in stores:
        store.validate()
        assert (store.revision, store.last_seq, store.count, store.mark) == (1, 1, 1, None)


def test_after_a_failed_tick_the_same_groups_are_new() -> None:
    store, tick = store_named("a"), new_tick(1)
    for counter in (1, 2):
        tick.write(store, arrival(store, counter, append(b"lost")))
    tick.records()
    tick.fail(FULL)
    again = new_tick(1)
    for counter in (1, 2):
        again.write(store, arrival(store, counter, append(b"kept")))
    (record,) = again.records()
    assert frames.decode_changes(record.payloads[0]).changes == [[1, 1, b"kept"], [1, 2, b"kept"]]


def test_a_retry_within_a_tick_that_failed_is_refused_like_the_group_itself() -> None:
    store, tick = store_named("a"), new_tick(1)
    for reply in ("one", "two"):
        tick.write(store, arrival(store, 1, append(), reply=reply))
    tick.records()
    tick.fail(FULL)
    assert codes(tick.synced) == {"one": ["storage_failed"], "two": ["storage_failed"]}


def test_what_else_was_in_a_failed_tick_waits_only_for_earlier_ones() -> None:
    store, tick = store_named("a"), new_tick(2)
    committed(1, store, arrival(store, 1, append()))
    tick.write(store, arrival(store, 2, append()))
    tick.read(store, arrival(store, 0, [frames.HEAD], reply="read"))
    assert tick.wait_for == 2
    tick.records()
    tick.fail(FULL)
    # Nobody will ever sync a tick 2 that holds this.
    assert tick.wait_for == 1


def test_one_store_that_fails_is_taken_back_and_the_others_go_on() -> None:
    good, bad, tick = store_named("good"), store_named("bad"), new_tick()
    tick.write(good, arrival(good, 1, append(), reply="good"))
    tick.write(bad, arrival(bad, 1, append(), reply="bad"))
    tick.abort(bad, FULL)
    (record,) = tick.records()
    tick.committed(segment=1)
    assert record.store == good.id
    assert codes(tick.synced) == {"good": ["ok"], "bad": ["storage_failed"]}
    assert (bad.revision, bad.mark) == (0, None)
    assert [store for store, _ in tick.broadcasts] == [good]


def test_a_read_beside_an_only_store_that_failed_does_not_wait_for_ever() -> None:
    store, tick = store_named("a"), new_tick(3)
    tick.write(store, arrival(store, 1, append()))
    tick.read(store, arrival(store, 0, [frames.HEAD], reply="read"))
    tick.abort(store, FULL)
    assert tick.records() == []
    assert tick.wait_for < 3


def test_a_store_that_failed_can_be_written_again_in_the_same_tick() -> None:
    store, tick = store_named("a"), new_tick()
    tick.write(store, arrival(store, 1, append(b"lost"), reply="lost"))
    tick.abort(store, FULL)
    tick.write(store, arrival(store, 1, append(b"kept"), reply="kept"))
    (record,) = tick.records()
    tick.committed(segment=1)
    assert codes(tick.synced) == {"lost": ["storage_failed"], "kept": ["ok"]}
    assert frames.decode_changes(record.payloads[0]).changes == [[1, 1, b"kept"]]


# Reads
def test_a_read_waits_for_what_was_written_before_it() -> None:
    store, other = store_named("a"), store_named("b")
    committed(4, store, arrival(store, 1, append()))
    later = new_tick(5)
    later.read(store, arrival(store, 0, [frames.HEAD]))
    assert later.wait_for == 4
    of_other = new_tick(5)
    of_other.read(other, arrival(other, 0, [frames.HEAD]))
    assert of_other.wait_for == 0
    same = new_tick(5)
    same.write(store, arrival(store, 2, append()))
    same.read(store, arrival(store, 0, [frames.HEAD]))
    assert same.wait_for == 5


# Broadcasts
BIG_CHANGES = st.one_of(
    st.builds(lambda size: [frames.APPEND, bytes(size)], st.sampled_from([0, 9000, 300_000])),
    st.builds(
        lambda size: [frames.APPEND, b"", {"h": "x" * size}],
        st.sampled_from([9000, MAX_HEADERS_BYTES - 8]),
    ),
    st.just([frames.APPEND, bytes(MAX_VALUE_BYTES), {"h": "x" * (MAX_HEADERS_BYTES - 8)}]),
)
BIG_ENTRIES = st.one_of(
    st.builds(
        lambda key, size: [frames.SET_ENTRY, f"{key}" * 1000, bytes(size)],
        st.integers(0, 9),
        st.sampled_from([0, 9000]),
    ),
    st.builds(lambda key: [frames.DELETE_ENTRIES, [f"{key}" * 1000]], st.integers(0, 9)),
)


@given(kind=st.sampled_from(StoreKind), data=st.data(), times=st.sampled_from([1, 10, 200]))
@settings(deadline=None, max_examples=examples(40))
def test_broadcasts_are_contiguous_and_each_fits_in_one_payload(
    kind: StoreKind, data: st.DataObject, times: int
) -> None:
    one = BIG_CHANGES if kind is StoreKind.STREAM else BIG_ENTRIES
    wanted = data.draw(st.lists(one, min_size=1, max_size=6)) * times
    wanted = wanted[: max(1, 20_000_000 // 1_100_000) if times == 200 else len(wanted)]
    if kind is StoreKind.KV:
        wanted *= 30
    store, tick = store_named("n" * 200, kind), new_tick()
    tick.write(store, arrival(store, 1, *wanted))
    (record,) = tick.records()
    revision = 0
    for payload in record.payloads:
        assert len(payload) < MIN_PAYLOAD_BYTES - FRAME_RESERVE_BYTES
        batch = frames.decode_changes(payload)
        assert batch.previous_revision == revision
        revision += len(batch.changes)
    assert revision == store.revision == record.revision
    assert [payload for _, payload in tick.broadcasts] == list(record.payloads)


def test_many_small_changes_with_long_keys_do_not_share_one_payload() -> None:
    store, tick = store_named("a", StoreKind.KV), new_tick()
    entries = [[frames.SET_ENTRY, f"{number:01000d}", b""] for number in range(2000)]
    tick.write(store, arrival(store, 1, *entries))
    deletes = [[frames.DELETE_ENTRIES, [entry[1]]] for entry in entries]
    tick.write(store, arrival(store, 2, *deletes))
    (record,) = tick.records()
    assert len(record.payloads) > 5
    assert max(map(len, record.payloads)) < MIN_PAYLOAD_BYTES - FRAME_RESERVE_BYTES


# With a file
@pytest.fixture
def on_file(tmp_path: Path) -> Iterator[Store]:
    store_id = StoreId("acme", StoreKind.STREAM, "a")
    path = tmp_path / "db"
    store = Store(store_id, 1, None, lambda _: StoreFile.create(path, store_id, time=1))
    yield store
    abandon(store)


def test_retries_are_answered_alike_after_the_store_was_reopened(on_file: Store) -> None:
    tick = new_tick()
    for counter in (1, 2, 3):
        tick.write(on_file, arrival(on_file, counter, append(), position=counter, first_unacked=2))
    commit(tick)
    first = {each[0]: each[2] for each in tick.synced["reply"]}
    on_file.materialise(1)
    reopened = Store(on_file.id, 2, file_of(on_file), lambda: pytest.fail("there is a file"))
    retry = new_tick(2)
    for counter in (2, 3):
        retry.write(reopened, arrival(reopened, counter, append(), position=counter))
    assert {each[0]: each[2] for each in retry.synced["reply"]} == {2: first[2], 3: first[3]}
    retry.write(reopened, arrival(reopened, 1, append(), reply="given up"))
    assert codes(retry.synced)["given up"] == ["stale_write"]
    assert reopened.last_seq == 3


def increment(subject: str = "n", msg_id: str | None = None) -> list[Any]:
    return [frames.APPEND, b"", None, msg_id, None, None, subject, None, {"incr": "8675309"}]


REFUSED = [frames.EXPECT, None, 99]


@pytest.mark.parametrize(
    "group",
    [
        [increment()],
        [increment(), [frames.APPEND, b"other", None, None, None, None, "n"]],
        [increment(), [frames.BATCH, [append(), REFUSED]]],
        [[frames.BATCH, [append(), increment()]]],
        [increment("m", "known")],
    ],
)
def test_no_total_of_an_encrypted_counter_is_kept_in_clear(
    on_file: Store, group: list[list[Any]]
) -> None:
    encrypt(on_file, KEYS)
    committed(1, on_file, arrival(on_file, 1, append()))
    committed(2, on_file, arrival(on_file, 1, increment("m", "known"), writer=b"first"))
    on_file.totals.clear()
    tick = committed(3, on_file, arrival(on_file, 2, *group))
    [[_, _, outcome]] = tick.synced["reply"]
    kept = on_file.kept_outcomes()[-1].outcome
    assert b"8675309" in outcome and b"8675309" not in kept
    on_file.materialise(3)
    reopened = encrypt(Store(on_file.id, 2, file_of(on_file), lambda: pytest.fail("a file")), KEYS)
    retry = new_tick(4)
    retry.write(reopened, arrival(reopened, 2, *group))
    assert retry.synced["reply"] == [[0, 0, outcome]]


def test_an_answer_of_an_encrypted_store_without_a_total_is_kept_as_it_is(on_file: Store) -> None:
    encrypt(on_file, KEYS)
    committed(1, on_file, arrival(on_file, 1, increment()))
    tick = committed(2, on_file, arrival(on_file, 2, append(), append()))
    assert on_file.kept_outcomes()[-1].outcome == tick.synced["reply"][0][2]


def test_a_file_never_runs_ahead_of_the_synced_log(on_file: Store) -> None:
    for number in (1, 2, 3):
        committed(number, on_file, arrival(on_file, number, append()))
    on_file.materialise(0)
    assert on_file.file is None
    on_file.materialise(2)
    assert on_file.file_revision == 2
    assert [kept.tick for kept in on_file.pending.ticks] == [3]
    on_file.validate()


# Limits
def configured(tmp_path: Path, **config: Any) -> Store:
    store = store_named("a")
    store.contents._create_file = lambda _: StoreFile.create(tmp_path / "a.db", store.id, time=1)
    committed(1, store, arrival(store, 1, [frames.CONFIGURE, config], writer=b"c"))
    return store


def test_a_write_that_does_not_say_has_the_durability_of_its_store(tmp_path: Path) -> None:
    store = configured(tmp_path, durability="applied")
    tick = new_tick(2)
    tick.write(store, arrival(store, 1, append(), reply="silent"))
    tick.write(store, arrival(store, 2, append(), reply="says", durability=Durability.SYNCED))
    assert outcome_of(tick.applied, "silent").durability == Durability.APPLIED
    assert outcome_of(tick.synced, "says").durability == Durability.SYNCED


def test_a_read_waits_for_the_tick_that_removed_what_it_must_not_see(tmp_path: Path) -> None:
    store = configured(tmp_path, max_age_seconds=0.001)
    committed(2, store, arrival(store, 1, append()))
    tick = new_tick(10)
    assert tick.expire(store)
    tick.read(store, arrival(store, 0, [frames.HEAD], first_unacked=0))
    (record,) = tick.records()
    assert (record.previous_revision, record.revision) == (2, 3)
    assert record.outcomes == []
    tick.committed(segment=1)
    assert tick.wait_for == 10
    assert store.count == 0


def test_nothing_due_writes_nothing(tmp_path: Path) -> None:
    store = configured(tmp_path, max_age_seconds=100)
    tick = new_tick(2)
    assert tick.expire(store)
    tick.read(store, arrival(store, 0, [frames.HEAD], first_unacked=0))
    assert tick.records() == []
    assert store.mark is None


def test_a_read_is_answered_though_the_log_did_not_take_what_expired(tmp_path: Path) -> None:
    store = configured(tmp_path, max_age_seconds=0.001)
    committed(2, store, arrival(store, 1, append()))
    tick = new_tick(10)
    assert tick.expire(store)
    tick.read(store, arrival(store, 0, [frames.HEAD], first_unacked=0))
    assert tick.records()
    tick.fail(FULL)
    assert len(tick.reads) == 1
    assert tick.wait_for == 9
    assert (store.count, store.mark) == (1, None)
    again = new_tick(11)
    assert again.expire(store)
    assert store.count == 0


def refused(store: Store, writer: bytes, counter: int, first_unacked: int) -> str:
    """Return the code of what a group is refused with, or `ok`."""
    tick = new_tick(store.last_tick + 1)
    tick.write(store, arrival(store, counter, append(), first_unacked=first_unacked, writer=writer))
    if tick.records():
        tick.committed(1)
    [code] = codes(tick.synced)["reply"]
    return code


def test_a_writer_that_waits_for_all_it_ever_wrote_is_busy_and_others_are_not() -> None:
    store = store_named("a")
    for counter in range(1, MAX_WRITER_OUTCOMES + 1):
        assert refused(store, b"w", counter, 1) == "ok"
    assert refused(store, b"w", MAX_WRITER_OUTCOMES + 1, 1) == "busy"
    assert store.writers.outcome_bytes == store.writers.known[b"w"].size_bytes
    assert refused(store, b"x", 1, 1) == "ok"
    assert refused(store, b"w", MAX_WRITER_OUTCOMES + 1, MAX_WRITER_OUTCOMES) == "ok"
    assert len(store.writers.known[b"w"].outcomes) == 2
    store.validate()


def test_writers_that_are_made_up_push_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.persist.store.store_writers.MAX_WRITERS", 3)
    store = store_named("a")
    for writer in (b"1", b"2", b"3"):
        assert refused(store, writer, 1, 1) == "ok"
    for number in range(99):
        assert refused(store, b"made up %d" % number, 1, 1) == "busy"
        assert refused(store, b"early %d" % number, 9, 1) == "writer_gap"
    assert set(store.writers.known) == {b"1", b"2", b"3"}
    assert refused(store, b"2", 2, 2) == "ok"
    assert refused(store, b"1", 1, 1) == "ok"
    assert store.count == 4


def test_when_outcomes_fill_their_room_only_who_waits_for_nothing_else_gets_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = store_named("a")
    for writer in (b"1", b"2"):
        assert [refused(store, writer, counter, 1) for counter in (1, 2)] == ["ok", "ok"]
    for module in ("store.store_writers", "write_path.tick"):
        monkeypatch.setattr(f"holdfast.persist.{module}.MAX_OUTCOME_BYTES", 30)
    assert refused(store, b"3", 1, 1) == "busy"
    assert refused(store, b"1", 3, 1) == "busy"
    assert refused(store, b"1", 3, 3) == "ok"
    assert refused(store, b"1", 4, 4) == "ok"


def test_outcomes_in_the_file_count_and_go_after_their_time_by_no_wall_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.persist.store.store_writers.MAX_WRITERS", 2)
    path, store_id = tmp_path / "store.db", StoreId("acme", StoreKind.STREAM, "a")
    store = Store(store_id, 7, None, lambda _: StoreFile.create(path, store_id, time=1))
    assert [refused(store, writer, 1, 1) for writer in (b"1", b"2", b"3")] == ["ok", "ok", "busy"]
    store.materialise(store.last_tick)
    file_of(store).close()
    store = Store(
        store_id,
        8,
        StoreFile.open(path, store_id),
        lambda _: StoreFile.create(path, store_id, time=1),
    )
    store.last_tick = 2
    assert [refused(store, writer, 1, 1) for writer in (b"3", b"1")] == ["busy", "ok"]
    assert (store.count, store.writers.count) == (2, 2)
    # The clock leaps ahead by a century; only what is monotonic counts.
    store.time += 100 * 366 * 86_400_000
    for now, code in ((10.0, "busy"), (500.0, "busy"), (620.0, "ok")):
        msg_ids_before, outcomes_before = store.forgets_before(now)
        store.forgot(
            file_of(store).forget(msg_ids_before=msg_ids_before, outcomes_before=outcomes_before)
        )
        assert refused(store, b"3", 1, 1) == code
    store.materialise(store.last_tick)
    assert [writer for writer, *_ in file_of(store).all_outcomes()] == [b"3"]
    file_of(store).abandon()

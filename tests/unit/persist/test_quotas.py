"""Quotas of tenants before the tick: who is refused what, and what a server reports."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.persist.quotas.open_room import OpenRoom
from holdfast.persist.quotas.quota_book import REPORT_ROWS, QuotaBook, UsageReport
from holdfast.persist.quotas.tenant_quota import TenantQuota, adds
from holdfast.persist.store.open_stores import Arrival, OpenStores, WantedStore
from holdfast.persist.store.states import OpenState
from holdfast.persist.store.store import Store
from holdfast.persist.store.writers import Admission, WriterState
from holdfast.persist.write_path.inbox import Inbox
from holdfast.persist.write_path.tick import Tick
from holdfast.persist.write_path.turn import Conditions, Promises, TurnBuilder
from holdfast.protocol import frames
from holdfast.protocol.access.quota import NO_QUOTA, Quota
from holdfast.protocol.control import StoreTotals
from holdfast.protocol.errors import InvalidArgumentError, LimitExceededError, MalformedFrameError
from holdfast.protocol.limits import UPLOAD_ID_BYTES
from holdfast.protocol.names import StoreId, StoreKind
from tests.support.stores import store_of
from tests.unit.persist.test_tick import append, arrival, outcome_of

HEAD = [frames.HEAD]
APPEND = [frames.APPEND, b"v"]
DELETE = [frames.DELETE_MESSAGES, [1]]
TRIM = [frames.TRIM, 1]


class World:
    """A builder over a stream of a tenant with a quota, and one of a tenant without."""

    def __init__(self, quota: Quota) -> None:
        self.book = QuotaBook()
        self.open_stores = OpenStores()
        self.open_stores.on_opened(self.book.opened, self.book.gone)
        self.mine = self.open("mine", "acme")
        self.others = self.open("others", "other")
        self.book.change({"acme": quota}, self.open_stores.stores())
        self.inbox = Inbox("s1")
        self.builder = TurnBuilder("s1", self.inbox, self.open_stores, Promises(), self.book)
        self.number = 0
        self.now = 50.0

    def open(self, name: str, tenant: str) -> Store:
        store = store_of(StoreId(tenant, StoreKind.STREAM, name), 7)
        self.open_stores.opened(store)
        return store

    def tick(self, *arrivals: Arrival, size_bytes: int = 10) -> Tick:
        for each in arrivals:
            self.inbox.submit([each._replace(size_bytes=size_bytes)])
        self.number += 1
        tick = self.builder.build(self.number, Conditions(1000, self.now))
        if tick.records():
            tick.committed(segment=1)
        return tick

    def results(self, *wanted: list[Any], counter: int, **options: Any) -> list[Any]:
        """Write a group to the tenant's stream, and return the code or `ok` for each operation."""
        first_unacked = options.pop("first_unacked", counter)
        group = arrival(self.mine, counter, *wanted, first_unacked=first_unacked)
        return told(self.tick(group, **options))


def told(tick: Tick) -> list[Any]:
    results = outcome_of(tick.synced).results
    if isinstance(results, frames.Run):
        return ["ok"] * results.length
    return [each[0] if type(each[0]) is str else "ok" for each in results]


def test_a_rate_admits_its_burst_and_then_refuses_without_using_anything_up() -> None:
    world = World(Quota(max_rate=2))
    assert world.results(APPEND, APPEND, counter=1) == ["ok", "ok"]
    tick = world.tick(arrival(world.mine, 2, append(), first_unacked=2))
    code, fields = outcome_of(tick.synced).results[0]
    assert (code, fields["what"], fields["limit"]) == ("rate_limited", "the tenant's max_rate", 2)
    assert fields["retry_after_seconds"] == 0.5
    assert tick.records() == [], "a refusal is not logged"
    world.now += 0.25
    assert world.results(APPEND, counter=3) == ["rate_limited"]
    world.now += 0.25
    assert world.results(APPEND, counter=4) == ["ok"]
    assert world.mine.last_seq == 3
    # A tenant without a quota notices nothing.
    for counter in range(1, 9):
        assert told(world.tick(arrival(world.others, counter, append()))) == ["ok"]


def test_no_copy_of_a_refused_group_is_executed_and_the_next_number_goes_on() -> None:
    world = World(Quota(max_rate=1))
    assert world.results(APPEND, counter=1) == ["ok"]
    assert world.results(APPEND, counter=2, first_unacked=1) == ["rate_limited"]
    world.now += 60
    assert world.results(APPEND, counter=2, first_unacked=1) == ["rate_limited"], "a late copy"
    assert world.results(APPEND, counter=3, first_unacked=1) == ["ok"], "sent before the answer"
    assert world.results(APPEND, counter=2, first_unacked=2) == ["rate_limited"]
    assert world.mine.last_seq == 2


def test_a_new_writer_whose_first_group_is_refused_is_neither_counted_nor_stuck() -> None:
    world = World(Quota(max_rate=1))
    assert world.results(APPEND, counter=1) == ["ok"]
    for number in range(2000):
        new = arrival(world.mine, 1, append(), writer=b"new-%d" % number)
        assert told(world.tick(new)) == ["rate_limited"]
    writers = world.mine.writers
    assert writers.count == 1
    assert len(writers.known) <= 1100
    assert writers.outcome_bytes == sum(each.size_bytes for each in writers.known.values())
    world.now += 60
    last = b"new-1999"
    assert told(world.tick(arrival(world.mine, 1, append(), writer=last))) == ["rate_limited"]
    assert told(world.tick(arrival(world.mine, 2, append(), writer=last))) == ["ok"]


def test_large_refusals_are_not_kept_and_their_copies_are_stale() -> None:
    writer = WriterState()
    writer.refuse(1, 1, b"x" * 5000)
    assert writer.size_bytes == 0
    assert writer.judge(1, 1)[0] is Admission.STALE
    for counter in range(2, 1000):
        assert writer.judge(counter, 1)[0] is Admission.NEW
        writer.refuse(counter, 1, b"x" * 100)
    assert writer.size_bytes <= 4096
    writer.refuse(1000, 1000, b"last")
    assert writer.outcomes == {1000: b"last"}
    writer.record(1001, 1001, b"done")
    assert writer.judge(1001, 1001) == (Admission.KNOWN, b"done")


def test_reads_and_the_members_of_batches_count_for_the_rate() -> None:
    world = World(Quota(max_rate=4))
    batch = [frames.BATCH, [APPEND, APPEND, APPEND]]
    assert world.results(batch, counter=1) == ["ok"]
    read = arrival(world.mine, 0, HEAD, reply="read")
    assert len(world.tick(read).reads) == 1
    tick = world.tick(read)
    assert tick.reads == []
    assert outcome_of(tick.synced, "read").results[0][0] == "rate_limited"
    assert world.inbox.room.taken == 10, "the first read is not answered yet"


def test_bytes_a_second_are_those_of_writes() -> None:
    world = World(Quota(max_bytes_per_second=1000))
    for _ in range(9):
        assert len(world.tick(arrival(world.mine, 0, HEAD), size_bytes=900).reads) == 1
    assert world.results(APPEND, counter=1, size_bytes=900) == ["ok"]
    assert world.results(APPEND, counter=2, size_bytes=900) == ["rate_limited"]
    world.now += 1
    assert world.results(APPEND, counter=3, size_bytes=900) == ["ok"]


def test_a_full_tenant_may_free_space_and_configure_but_not_add() -> None:
    world = World(Quota(max_bytes=3))
    assert world.results(APPEND, APPEND, APPEND, counter=1) == ["ok"] * 3
    tick = world.tick(arrival(world.mine, 2, append(), first_unacked=2), size_bytes=10)
    code, fields = outcome_of(tick.synced).results[0]
    assert code == "limit_exceeded"
    assert fields == {"what": "the tenant's max_bytes", "limit": 3, "value": 13}
    mixed = [APPEND, DELETE, [frames.CONFIGURE, {"description": "full"}]]
    assert world.results(*mixed, counter=3) == ["limit_exceeded", "ok", "ok"]
    assert world.results(APPEND, counter=4) == ["ok"], "there is room again"
    assert world.results([frames.BATCH, [DELETE, APPEND]], counter=5) == ["limit_exceeded"]
    assert world.results(TRIM, counter=6) == ["ok"]
    assert len(world.tick(arrival(world.mine, 0, HEAD)).reads) == 1


def test_a_store_that_is_made_whole_needs_room_for_all_of_it() -> None:
    world = World(Quota(max_bytes=100))
    world.book.take_room("acme", 60)
    with pytest.raises(LimitExceededError, match="max_bytes is 100; this would make it 120"):
        world.book.take_room("acme", 60)
    world.book.take_room("acme", 40)
    assert world.results(APPEND, counter=1) == ["limit_exceeded"]
    world.book.take_room("other", 1 << 40)


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (APPEND, True),
        ([frames.SET_ENTRY, "k", b"v"], True),
        ([frames.PUT_CHUNK, b"u", 0, b"x"], True),
        ([frames.BATCH, [DELETE, [frames.SET_MESSAGE, 1, b"v"]]], True),
        (DELETE, False),
        (TRIM, False),
        ([frames.BATCH, [DELETE]], False),
        ([frames.BATCH], False),
        ([frames.BATCH, [[], 7]], False),
        ([frames.CONSUMER_ACK, "c", []], False),
    ],
)
def test_operations_that_may_add_are_told_from_others(operation: list[Any], expected: bool) -> None:
    assert adds(operation) is expected


def test_sizes_are_reported_until_they_are_heard_and_are_states() -> None:
    world = World(Quota(max_bytes=1000))
    world.results(APPEND, APPEND, counter=1)
    [stores, rates] = world.book.reports(1.0)
    assert stores == UsageReport(((world.mine, StoreTotals(2, 2, world.mine.time)),), ())
    assert rates.rates[0][0] == "acme"
    world.results(APPEND, counter=2)
    world.book.unheard(stores)
    [again, rates] = world.book.reports(2.0)
    assert again.stores == ((world.mine, StoreTotals(3, 3, world.mine.time)),), "once"
    world.book.answered({"acme": [3, 1.0, 1.0], "gone": [9, 1.0, 1.0]}, {})
    assert list(world.book.reports(3.0)) == []
    closed = world.mine
    world.results(APPEND, counter=3)
    closed.enter(OpenState.CLOSED)
    reports = list(world.book.reports(4.0))
    assert [each.stores for each in reports] == [()], "closing it tells its size"


def test_what_the_coordinator_tells_counts_with_what_was_added_since() -> None:
    quota = TenantQuota("acme", Quota(max_bytes=100))
    store = store_of(StoreId("acme", StoreKind.STREAM, "a"), 7)
    quota.wrote(store, 30)
    assert quota.take_touched() == [store]
    quota.reported()
    quota.wrote(store, 5)
    assert quota.used_bytes == 35
    quota.told(90, (1.0, 1.0))
    assert quota.used_bytes == 95, "90 with the 30, and the 5 after the report"
    assert not quota.is_full
    quota.wrote(store, 5)
    assert quota.is_full
    quota.becomes(Quota(max_bytes=200))
    assert not quota.is_full
    quota.becomes(NO_QUOTA)
    quota.told(10**9, (1.0, 1.0))
    assert not quota.is_full


def test_a_server_keeps_its_share_of_a_rate() -> None:
    world = World(Quota(max_rate=100))
    quota = world.book.of("acme")
    assert quota is not None
    quota.told(0, (0.25, 1.0))
    count = 0
    while world.results(APPEND, counter=count + 1) == ["ok"]:
        count += 1
    assert count == 25
    world.now += 0.1
    assert world.results(APPEND, APPEND, counter=count + 2) == ["ok", "ok"]
    assert world.results(APPEND, counter=count + 3) == ["rate_limited"]
    quota.told(0, (0.0, 0.0))
    world.now += 1
    assert world.results(APPEND, counter=count + 4) == ["rate_limited"]


def test_all_open_stores_are_reported_once_a_tenant_gets_a_limit_of_bytes() -> None:
    world = World(Quota(max_rate=1000))
    world.results(APPEND, counter=1)
    more = world.open("more", "acme")
    assert [each.stores for each in world.book.reports(1.0)] == [()]
    world.book.change({"acme": Quota(max_bytes=10)}, world.open_stores.stores())
    [stores, _] = world.book.reports(2.0)
    assert {(store, told.bytes) for store, told in stores.stores} == {(world.mine, 1), (more, 0)}
    world.book.change({}, world.open_stores.stores())
    assert world.book.of("acme") is None
    assert list(world.book.reports(3.0)) == []


def test_reports_are_bounded_and_a_tenant_that_is_gone_is_forgotten() -> None:
    book = QuotaBook()
    tenants = {f"t{number}": Quota(max_bytes=1, max_rate=1) for number in range(REPORT_ROWS + 1)}
    book.change(tenants, ())
    for tenant in tenants:
        book.touched(store_of(StoreId(tenant, StoreKind.KV, "a"), 1))
    sizes = [(len(each.stores), len(each.rates)) for each in book.reports(1.0)]
    assert sizes == [(REPORT_ROWS, 0), (1, 0), (0, REPORT_ROWS), (0, 1)]
    assert not book.is_idle
    for number in range(70):
        assert list(book.reports(2.0 + number)) == []
    assert book.is_idle


@pytest.mark.parametrize(
    ("used", "elsewhere"),
    [(None, {}), ([1], {}), ({"acme": None}, {}), ({"acme": ["x", 1, 1]}, {}), ({"acme": [1]}, {}),
     ({}, None), ({}, {"acme": [1]}), ({}, {"acme": ["x", 1]})],
)  # fmt: skip
def test_an_answer_that_makes_no_sense_is_an_error(used: Any, elsewhere: Any) -> None:
    world = World(Quota(max_bytes=3))
    world.results(APPEND, counter=1)
    with pytest.raises(MalformedFrameError):
        world.book.answered(used, elsewhere)


def chunk(upload: int, offset: int = 0) -> list[Any]:
    return [frames.PUT_CHUNK, bytes([upload]) * UPLOAD_ID_BYTES, offset, b"x" * 10]


def test_no_upload_begins_beyond_the_limit_and_those_that_began_go_on() -> None:
    world = World(Quota(max_uploads=2))
    assert world.results(chunk(1), counter=1) == ["ok"]
    world.book.answered({}, {"acme": [0, 1]})
    tick = world.tick(arrival(world.mine, 2, chunk(2), first_unacked=2))
    code, fields = outcome_of(tick.synced).results[0]
    assert code == "limit_exceeded"
    assert fields == {"what": "the tenant's max_uploads", "limit": 2, "value": 3}
    assert tick.records() == [], "a refusal is not logged"
    mixed = [chunk(1, 10), chunk(3), [frames.APPEND, b"v"]]
    assert world.results(*mixed, counter=3) == ["ok", "limit_exceeded", "ok"]
    [report] = world.book.reports(1.0)
    assert report.rates[0][3:] == (1, 1)
    drop = [frames.DROP_UPLOADS, [chunk(1)[1]]]
    assert world.results(drop, counter=4) == ["ok"]
    assert world.results(chunk(2), counter=5) == ["ok"]
    quota = world.book.of("acme")
    assert quota is not None
    assert quota.upload_count == 1
    world.mine.enter(OpenState.LENT)
    quota.wrote(world.mine, 0)
    assert quota.upload_count == 1, "the file is in use"
    world.mine.enter(OpenState.SERVING)
    world.open_stores.closed(world.mine)
    assert (quota.upload_count, quota.open) == (0, {})
    world.book.unheard(report)
    quota.wrote(world.mine, 0)
    assert quota.upload_count == 0, "it is not open"


class Room:
    """The room of a tenant with four open stores at most, two of which another server has."""

    def __init__(self) -> None:
        self.world = World(Quota(max_open_stores=4))
        self.world.book.answered({}, {"acme": [2, 0]})
        self.refused: list[tuple[str, Any]] = []
        self.room = OpenRoom(self.world.book, self.world.open_stores, self.close, self.refuse)

    async def close(self, stores: list[Store]) -> int:
        settled = [store for store in stores if store.last_tick == 0]
        for store in settled:
            self.world.open_stores.closed(store)
        return len(settled)

    def refuse(self, store: StoreId, error: Any) -> None:
        self.refused.append((store.name, error))
        self.world.open_stores.refused(store)

    async def admit(self, *names: str, tenant: str = "acme") -> list[str]:
        wanted = []
        for name in names:
            store = StoreId(tenant, StoreKind.STREAM, name)
            each = arrival(store_of(store, 7), 1, append())
            self.world.open_stores.wait(each)
            wanted.append(WantedStore(store, create=True))
        self.world.open_stores.take_wanted(100)
        return [each.store.name for each in await self.room.admit(wanted)]

    @property
    def asked_again(self) -> list[str]:
        return [each.store.name for each in self.world.open_stores.take_wanted(100)]


async def test_a_store_beyond_the_limit_opens_once_one_of_its_tenant_is_closed() -> None:
    room = Room()
    assert await room.admit("one") == ["one"]
    assert await room.admit("one") == ["one"], "the coordinator did not answer"
    assert await room.admit("x", "y", tenant="other") == ["x", "y"]
    room.world.open("one", "acme")
    room.world.mine.used_at, room.world.others.used_at = 3.0, 1.0
    assert await room.admit("two") == []
    assert room.asked_again == ["two"]
    assert [store.id.name for store in room.world.open_stores.stores()] == ["mine", "others"]
    assert await room.admit("two") == ["two"]
    room.world.open("two", "acme")
    assert await room.admit("two") == ["two"], "it is open for reads, and now written to"
    for store in room.world.open_stores.stores():
        store.last_tick = 9
    assert await room.admit("three") == []
    [(name, error)] = room.refused
    assert (name, error.code, error.retryable) == ("three", "busy", True)
    assert str(error) == "busy: the tenant's max_open_stores, which is 4, is full"
    room.world.book.answered({}, {"acme": [1, 0]})
    assert await room.admit("three") == ["three"]


def test_a_limit_that_is_set_later_counts_what_is_open() -> None:
    world = World(NO_QUOTA)
    world.book.change({"acme": Quota(max_open_stores=1)}, world.open_stores.stores())
    quota = world.book.of("acme")
    assert quota is not None
    assert quota.open_room() == 0
    for now in range(100):
        assert next(world.book.reports(float(now))).rates[0][3:] == (1, 0), "others need to know"
    world.open_stores.closed(world.mine)
    assert quota.open_room() == 1


@pytest.mark.parametrize(
    "fields",
    [{"max_stores": -1}, {"max_stores": 1.5}, {"max_bytes": True}, {"max_rate": 0},
     {"max_rate": float("nan")}, {"max_bytes_per_second": "9"}, {"max_bytes": 1 << 63}],
)  # fmt: skip
def test_a_quota_that_makes_no_sense_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        Quota.from_wire(fields)


def test_a_quota_travels_as_the_limits_that_it_sets() -> None:
    quota = Quota(max_stores=3, max_rate=1.5)
    assert quota.to_wire() == {"max_stores": 3, "max_rate": 1.5}
    assert Quota.from_wire({**quota.to_wire(), "max_moons": 3, "max_bytes": None}) == quota
    assert quota.limits_rates
    assert not NO_QUOTA.limits_rates

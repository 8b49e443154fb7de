"""The turn builder: what waits in the inbox goes in, a tick comes out. No loop, no clock, no
files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.persist.operations import operations
from holdfast.persist.quotas.log_shares import LOG_FULL_BYTES, LogShares
from holdfast.persist.store.open_stores import Arrival, OpenStores
from holdfast.persist.store.states import OpenState, Standing
from holdfast.persist.store.store import Store
from holdfast.persist.write_path import inbox as inbox_module
from holdfast.persist.write_path.inbox import TENANT_TURN_OPERATIONS, TURN_OPERATIONS, Inbox
from holdfast.persist.write_path.tick import Tick
from holdfast.persist.write_path.turn import Conditions, Promises, StoreWork, TurnBuilder
from holdfast.protocol import frames
from holdfast.protocol.errors import BusyError, FencedError
from holdfast.protocol.limits import KIB, MAX_INBOX_BYTES, MIB
from holdfast.protocol.messages import Durability
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.protocol.store_config import DEFAULT_CONFIG
from tests.support.stores import abandon, ephemeral_store, store_of
from tests.unit.persist.test_tick import FULL, append, arrival, codes, outcome_of, store_named

HEAD = [frames.HEAD]


class World:
    """A builder over two open streams, and how often it was said that there is something to do."""

    def __init__(self, promises: Promises | None = None) -> None:
        self.inbox = Inbox("s1")
        self.open_stores = OpenStores()
        self.stores = [store_named("a"), store_named("b")]
        for store in self.stores:
            self.open_stores.opened(store)
        self.builder = TurnBuilder("s1", self.inbox, self.open_stores, promises or Promises())
        self.wakes = 0
        self.inbox.on_work(self._wake)
        self._number = 0

    def _wake(self) -> None:
        self.wakes += 1

    def submit(self, *arrivals: Arrival, size_bytes: int = 10) -> None:
        for each in arrivals:
            self.inbox.submit([each._replace(size_bytes=size_bytes)])

    def build(self, **conditions: Any) -> Tick:
        """Build a tick and have the log take it."""
        self._number += 1
        tick = self.builder.build(self._number, Conditions(1000, 50.0, **conditions))
        if tick.records():
            tick.committed(segment=1)
        return tick

    @property
    def waits_bytes(self) -> int:
        return self.inbox.room.taken


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def a(world: World) -> Store:
    return world.stores[0]


@pytest.fixture
def b(world: World) -> Store:
    return world.stores[1]


def read(store: Store, reply: str = "read") -> Arrival:
    return arrival(store, 0, HEAD, reply=reply)


def test_what_waits_is_executed_in_one_tick_and_counts_no_more(
    world: World, a: Store, b: Store
) -> None:
    world.submit(arrival(a, 1, append()), arrival(b, 1, append(), append(), reply="other"))
    assert world.wakes == 2
    tick = world.build()
    assert codes(tick.synced) == {"reply": ["ok"], "other": ["ok"]}
    assert world.builder.operation_count == 3
    assert (a.used_at, b.used_at) == (50.0, 50.0)
    assert world.waits_bytes == 0
    assert not world.inbox


def test_a_read_waits_for_the_tick_before_it_and_counts_until_it_is_answered(
    world: World, a: Store
) -> None:
    world.submit(arrival(a, 1, append()), read(a))
    tick = world.build()
    assert [(store, each.reply) for store, each in tick.reads] == [(a, "read")]
    assert tick.wait_for == tick.number
    assert world.waits_bytes == 10
    world.inbox.waits_no_longer(tick.reads[0][1])
    assert world.waits_bytes == 0


def test_what_needs_a_store_that_is_not_open_waits_for_it_and_asks_for_it(world: World) -> None:
    closed = store_named("closed")
    world.submit(arrival(closed, 1, append()))
    tick = world.build()
    assert codes(tick.synced) == {}
    assert world.open_stores.wanted.is_set()
    assert world.open_stores.waiting_count == 1
    world.inbox.submit_again(world.open_stores.opened(closed))
    assert codes(world.build().synced) == {"reply": ["ok"]}
    assert world.waits_bytes == 0


def test_a_store_that_may_only_be_read_answers_reads_and_is_asked_for_by_a_write(
    world: World, a: Store
) -> None:
    a = store_of(a.id, 7, standing=Standing.UNWRITTEN)
    world.open_stores.opened(a)
    world.submit(read(a), arrival(a, 1, append()))
    assert len(world.build().reads) == 1
    assert [each.create for each in world.open_stores.take_wanted(9)] == [True]


def test_what_needs_a_file_that_somebody_has_waits_in_order_and_appends_go_on(
    world: World, a: Store
) -> None:
    world.submit(arrival(a, 1, append()))
    world.build()
    a.enter(OpenState.LENT)
    world.submit(arrival(a, 2, append(), reply="first"))
    assert codes(world.build().synced) == {"first": ["ok"]}
    world.submit(read(a), arrival(a, 3, append(), reply="second"))
    tick = world.build()
    # Not before the read, which came first.
    assert codes(tick.synced) == {}
    assert world.inbox.holds(a.id)
    a.enter(OpenState.SERVING)
    world.inbox.unhold(a.id)
    tick = world.build()
    assert codes(tick.synced) == {"second": ["ok"]}
    assert [each.reply for _, each in tick.reads] == ["read"]


def test_a_file_that_does_not_come_back_turns_away_what_waited(
    world: World, a: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox_module, "MAX_HELD_GROUPS", 1)
    a.enter(OpenState.HELD)
    world.submit(read(a, "held"), read(a, "one too many"))
    assert codes(world.build().synced) == {"one too many": ["busy"]}
    world.inbox.turn_away(a.id, FencedError(server="s1", incarnation="1"))
    assert codes(world.build().synced) == {"held": ["fenced"]}
    assert world.waits_bytes == 0


def test_a_turn_ends_and_tenants_have_theirs(world: World, a: Store) -> None:
    quiet = store_of(a.id._replace(tenant="quiet"), 7)
    world.open_stores.opened(quiet)
    world.submit(*[read(a, f"{number}") for number in range(TURN_OPERATIONS)])
    world.submit(read(quiet, "quiet"))
    tick = world.build()
    replies = [each.reply for _, each in tick.reads]
    assert replies.index("quiet") <= TENANT_TURN_OPERATIONS
    assert 0 < len(replies) < TURN_OPERATIONS
    assert world.inbox
    # A sync that is under way shall not wait for long.
    assert len(world.build(beside_sync=True).reads) < len(replies)


def test_over_the_bound_of_the_inbox_the_answer_is_busy(world: World, a: Store, b: Store) -> None:
    world.submit(read(a), size_bytes=MAX_INBOX_BYTES)
    world.submit(read(b, "refused"))
    tick = world.build()
    assert codes(tick.synced) == {"refused": ["busy"]}
    assert len(tick.reads) == 1


def test_pings_and_refusals_are_answered_with_the_tick(world: World) -> None:
    world.inbox.answer_empty("ping")
    world.inbox.refuse("refused", -1, BusyError(what="x"))
    tick = world.build()
    assert tick.synced["ping"] == []
    assert codes(tick.synced) == {"refused": ["busy"]}
    assert world.wakes == 2
    assert world.inbox.is_answered


def test_a_full_log_refuses_writes_and_not_reads(world: World, a: Store) -> None:
    world.submit(arrival(a, 1, append()), read(a))
    tick = world.build(log_bytes=LOG_FULL_BYTES + 1)
    assert codes(tick.synced) == {"reply": ["busy"]}
    assert len(tick.reads) == 1


def test_a_full_log_refuses_only_those_writes_of_an_ephemeral_store_that_it_must_hold(
    world: World, tmp_path: Path
) -> None:
    store = ephemeral_store(tmp_path / "s.db", StoreId("acme", StoreKind.STREAM, "s"))
    world.open_stores.opened(store)
    world.submit(arrival(store, 1, append()))
    # It would reserve numbers.
    assert codes(world.build(log_bytes=LOG_FULL_BYTES + 1).synced) == {"reply": ["busy"]}
    world.submit(arrival(store, 1, append()))
    assert world.build().synced == {}
    world.submit(arrival(store, 2, append()))
    world.submit(arrival(store, 3, [frames.CONFIGURE, {"max_messages": 5}], reply="configure"))
    full = world.build(log_bytes=LOG_FULL_BYTES + 1)
    assert codes(full.synced) == {"configure": ["busy"]}
    assert (store.count, store.config.max_messages) == (2, None)
    abandon(store)


def test_ephemeral_stores_leave_places_to_stores_that_can_be_closed(
    world: World, tmp_path: Path
) -> None:
    assert OpenStores(max_open_stores=8).memory_use.limit_stores == 6
    world.open_stores.memory_use.limit_stores = 1
    one, two = (
        ephemeral_store(tmp_path / f"{name}.db", StoreId("acme", StoreKind.STREAM, name))
        for name in ("one", "two")
    )
    for store in (one, two):
        world.open_stores.opened(store)
    for number in (1, 2):
        world.submit(arrival(one, number, append(), reply=f"r{number}"), read(two))
        world.submit(arrival(two, number, append(), reply="beyond"))
        assert codes(world.build().synced) == {"beyond": ["busy"]}
        assert (one.count, two.count) == (number, 0)
    world.open_stores.closed(one)
    world.submit(arrival(two, 1, append(), reply="r3"))
    assert world.build().synced == {}
    assert two.count == 1
    for store in (one, two):
        abandon(store)


def test_who_fills_the_log_is_refused_while_there_is_room_for_others(
    world: World, a: Store
) -> None:
    quiet = store_of(StoreId("quiet", StoreKind.STREAM, "notes"), 7)
    world.open_stores.opened(quiet)
    world.submit(arrival(a, 1, append()), size_bytes=MIB)
    world.submit(arrival(quiet, 1, append()), size_bytes=100)
    world.build()
    written = dict(world.builder.written)
    assert written == {a.id.tenant: MIB, "quiet": 100}
    for segment in range(1, 41):
        world.builder.log_shares.wrote(segment, 1, written.items())
    for counter, log_bytes, refused in ((2, 90 * MIB, False), (3, 100 * MIB, True)):
        world.submit(arrival(a, counter, append()), arrival(quiet, counter, append(), reply="q"))
        answers = codes(world.build(log_bytes=log_bytes).synced)
        assert (answers["reply"] == ["busy"], answers["q"] == ["busy"]) == (refused, False)
        assert [tenant for tenant, _ in world.builder.written] == (
            ["quiet"] if refused else [a.id.tenant, "quiet"]
        )


def test_what_a_tenant_has_in_the_log_goes_with_its_segments() -> None:
    shares, long_bytes = LogShares(), LOG_FULL_BYTES - 20 * MIB
    for segment in range(1, 31):
        shares.wrote(segment, 1, [("acme", MIB), ("tiny", 100)])
    assert shares.refuses("acme", long_bytes)
    assert not shares.refuses("acme", LOG_FULL_BYTES // 2), "there is room for everybody"
    assert not shares.refuses("tiny", LOG_FULL_BYTES), "only what is full refuses it"
    shares.wrote(31, 15, [])
    assert not shares.refuses("acme", long_bytes), "16 MiB are left, and 20 are free"
    shares.wrote(40, 40, [])
    assert not shares._of_tenants and list(shares._of_segments) == [40]


@pytest.mark.parametrize(("size_bytes", "least_share"), [(200, 0.4), (256 * KIB, 0.4)])
def test_a_tenant_at_full_rate_takes_its_share_of_each_turn_and_no_more(
    world: World, a: Store, size_bytes: int, least_share: float
) -> None:
    """Two tenants keep the queue full: one with as much as it may, one with small groups."""
    quiet = store_of(StoreId("quiet", StoreKind.STREAM, "notes"), 7)
    world.open_stores.opened(quiet)
    done = {a.id: 0, quiet.id: 0}
    costs = {a.id: 25 + size_bytes // KIB, quiet.id: 25}
    counter = 0
    for _ in range(6):
        for store, size in ((a, size_bytes), (quiet, 200)):
            for _ in range(TURN_OPERATIONS // costs[store.id] + 1):
                counter += 1
                reply = f"{store.id.tenant}.{counter}"
                each = arrival(store, 0, HEAD, reply=reply)
                world.inbox.groups.push(store.id.tenant, each._replace(size_bytes=size))
        tick = world.build()
        for store, _ in tick.reads:
            done[store.id] += costs[store.id]
    assert min(done.values()) >= least_share * sum(done.values())


@pytest.mark.parametrize("error", [FULL, ZeroDivisionError("a bug")])
def test_a_group_that_fails_takes_back_its_store_and_nothing_else(
    world: World, a: Store, b: Store, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = operations.execute

    def fail(store: Store, group: Any, mishaps: list[Exception]) -> Any:
        if len(group) == 2:
            raise error
        return execute(store, group, mishaps)

    monkeypatch.setattr(operations, "execute", fail)
    world.submit(
        arrival(a, 1, append(), reply="before"),
        arrival(b, 1, append(), reply="other"),
        arrival(a, 2, append(), append(), reply="failed"),
    )
    tick = world.build()
    code = "storage_failed" if error is FULL else "internal_error"
    # What the tick did before to the same store is taken back with it.
    assert codes(tick.synced) == {"before": [code], "other": ["ok"], "failed": [code]}
    assert (a.revision, b.revision) == (0, 1)
    assert [each.work for each in world.builder.failures] == [StoreWork.WRITE] * (error is FULL)
    assert tick.mishaps == [error] * (error is not FULL)
    # And the next one is as any.
    world.submit(arrival(a, 1, append(), reply="again"))
    assert codes(world.build().synced) == {"again": ["ok"]}
    assert world.builder.failures == []


def test_what_is_due_goes_first_and_other_stores_do_not_wait_for_that(
    world: World, a: Store, b: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = iter([False, False, True, True, True, True])
    monkeypatch.setattr(Tick, "expire", lambda tick, store: next(done))
    a.retention = DueRetention()  # type: ignore[assignment]
    world.submit(read(a, "1st"), read(a, "2nd"), arrival(b, 1, append(), reply="other"))
    assert codes(world.build().synced) == {"other": ["ok"]}
    # It goes on without being asked for, one part in each turn.
    assert world.inbox
    assert not world.inbox.is_answered
    world.submit(read(a, "3rd"), arrival(b, 2, append(), reply="other again"))
    tick = world.build()
    assert codes(tick.synced) == {"other again": ["ok"]}
    assert tick.reads == []
    # Then what has waited comes in its order.
    assert [each.reply for _, each in world.build().reads] == ["1st", "2nd", "3rd"]
    assert world.inbox.is_answered


class DueRetention:
    """Limits of which something is due."""

    uncounted = None
    config = DEFAULT_CONFIG

    def is_due(self, now: int) -> bool:
        return True


def test_the_level_that_nobody_asked_for_is_the_servers() -> None:
    world = World(Promises(Durability.APPLIED))
    [a, _] = world.stores
    world.submit(arrival(a, 1, append()))
    tick = world.build()
    assert outcome_of(tick.applied).durability == Durability.APPLIED

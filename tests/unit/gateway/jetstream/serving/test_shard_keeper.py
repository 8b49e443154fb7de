"""How gateways ask each other for shards, event by event."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from holdfast.gateway.jetstream.serving.shard_keeper import (
    RELEASE_SECONDS,
    SHARDS_AT_A_TIME,
    AskRelease,
    Effect,
    GiveUp,
    Offer,
    Serve,
    ShardKeeper,
)
from holdfast.gateway.jetstream.serving.shards import SHARD_COUNT, ShardTable

_ALL = frozenset(range(SHARD_COUNT))


def _served(effects: Iterable[Effect]) -> frozenset[int]:
    return frozenset().union(*(each.shards for each in effects if isinstance(each, Serve)))


def test_a_gateway_that_is_alone_takes_everything_at_once() -> None:
    one = ShardKeeper("a")
    assert one.view(("a",), 0.0) == [Serve(_ALL)]
    assert one.held == _ALL
    assert one.wake_at == float("inf")


def _joined(own: str, *others: str, now: float = 0.0) -> ShardKeeper:
    """A keeper that has got all of its shards from the others."""
    keeper = ShardKeeper(own)
    effects = keeper.view(sorted((own, *others)), now)
    while questions := [each for each in effects if isinstance(each, AskRelease)]:
        effects = [
            effect
            for each in questions
            for effect in keeper.answered(each.gateway, each.number, now)
        ]
    return keeper


def test_a_gateway_that_comes_asks_all_others_for_a_few_shards_at_a_time() -> None:
    new = ShardKeeper("c")
    wanted = sorted(ShardTable(("a", "b", "c")).shards_of("c"))
    first = frozenset(wanted[:SHARDS_AT_A_TIME])
    second = frozenset(wanted[SHARDS_AT_A_TIME : 2 * SHARDS_AT_A_TIME])
    questions = new.view(("a", "b", "c"), 0.0)
    assert questions == [AskRelease("a", 1, first), AskRelease("b", 1, first)]
    assert new.answered("b", 1, 0.1) == [] and not new.held
    assert new.answered("b", 1, 0.1) == []
    assert new.answered("a", 1, 0.1) == [
        Serve(first),
        AskRelease("a", 2, second),
        AskRelease("b", 2, second),
    ]
    assert new.held == first
    assert _joined("c", "a", "b").held == frozenset(wanted)


def test_who_does_not_answer_is_passed_over_and_waited_for_once() -> None:
    new = ShardKeeper("b")
    new.view(("a", "b"), 5.0)
    assert new.wake_at == 5.0 + RELEASE_SECONDS
    assert new.tick(5.0 + RELEASE_SECONDS - 0.1) == []
    assert _served(new.tick(5.0 + RELEASE_SECONDS)) == ShardTable(("a", "b")).shards_of("b")


def test_who_dies_while_it_is_asked_is_not_waited_for() -> None:
    new = ShardKeeper("b")
    new.view(("a", "b"), 0.0)
    assert _served(new.view(("b",), 0.1)) == _ALL
    # An answer to the former question counts no more.
    assert new.answered("a", 1, 0.2) == []


def test_a_gateway_serves_what_it_has_until_it_is_asked_for_it() -> None:
    old = ShardKeeper("a")
    old.view(("a",), 0.0)
    wanted = ShardTable(("a", "b")).shards_of("b")
    assert old.view(("a", "b"), 1.0) == []
    assert old.held == _ALL
    assert old.asked("b", 7, wanted, 1.1) == [GiveUp(wanted, "b", 7)]
    assert old.held == _ALL - wanted
    assert old.wake_at == float("inf")


def test_who_holds_what_hashes_to_another_tells_it_so_and_that_one_asks() -> None:
    one, other = ShardKeeper("a"), ShardKeeper("b")
    one.view(("a",), 0.0)
    other.view(("b",), 0.0)
    one.view(("a", "b"), 1.0)
    other.view(("a", "b"), 1.0)
    of_b = ShardTable(("a", "b")).shards_of("b")
    assert one.tick(1.5) == []
    assert one.tick(one.wake_at) == [Offer("b", of_b)]
    assert other.offered("a", of_b, 2.0) == [AskRelease("a", 0, of_b)]
    assert one.asked("b", 0, of_b, 2.0) == [GiveUp(of_b, "b", 0)]
    assert one.wake_at == float("inf")
    # What is offered by mistake, or is being asked for, is not asked for.
    assert other.offered("a", _ALL - of_b, 2.0) == []


def test_shards_that_were_taken_by_mistake_are_asked_for_again() -> None:
    old = _joined("a", "b")
    mine = old.held
    some = frozenset(sorted(mine)[:3])
    assert old.asked("b", 7, some, 10.0) == [GiveUp(some, "b", 7)]
    assert old.tick(10.5) == []
    [question] = old.tick(old.wake_at)
    assert isinstance(question, AskRelease) and question.shards == some
    assert old.answered("b", question.number, 12.0) == [Serve(some)]
    assert old.held == mine


def test_who_leaves_gives_up_its_shards_when_it_is_asked() -> None:
    one = _joined("a", "b")
    rest = sorted(_ALL - one.held)
    first = frozenset(rest[:SHARDS_AT_A_TIME])
    [question] = one.view(("a",), 1.0, leaving=("b",))
    assert isinstance(question, AskRelease)
    assert (question.gateway, question.shards) == ("b", first)
    assert one.answered("b", question.number, 1.1)[0] == Serve(first)


def test_a_shard_that_another_has_taken_is_asked_for_and_not_fought_for() -> None:
    one = _joined("a", "b")
    shard = min(one.held)
    one.lost(shard, 5.0)
    assert shard not in one.held
    assert one.tick(5.5) == []
    [question] = one.tick(one.wake_at)
    assert isinstance(question, AskRelease) and question.shards == frozenset((shard,))


def test_a_gateway_that_leaves_asks_for_nothing_more() -> None:
    old = ShardKeeper("a")
    old.view(("a",), 0.0)
    assert old.view((), 1.0) == []
    assert old.view(("b",), 1.0) == []
    assert old.held == _ALL
    assert old.tick(2.0) == [Offer("b", _ALL)]
    assert old.asked("b", 1, _ALL, 2.0) == [GiveUp(_ALL, "b", 1)]
    assert old.wake_at == float("inf") and old.tick(100.0) == []


@given(st.data())
def test_when_views_agree_each_shard_is_held_once(data: st.DataObject) -> None:
    names = ("a", "b", "c")
    gateways = {name: ShardKeeper(name) for name in names}
    now = 0.0
    messages: list[tuple[str, AskRelease | GiveUp | Offer]] = []

    def apply(name: str, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if not isinstance(effect, Serve):
                messages.append((name, effect))

    def deliver(index: int) -> None:
        name, message = messages.pop(index)
        other = gateways[message.gateway]
        if isinstance(message, Offer):
            apply(other.own, other.offered(name, message.shards, now))
        elif isinstance(message, AskRelease):
            apply(other.own, other.asked(name, message.number, message.shards, now))
        else:
            apply(other.own, other.answered(name, message.number, now))

    for _ in range(data.draw(st.integers(0, 12))):
        now += 0.1
        if messages and data.draw(st.booleans()):
            index = data.draw(st.integers(0, len(messages) - 1))
            if data.draw(st.booleans()):
                deliver(index)
            else:
                messages.pop(index)
        else:
            name = data.draw(st.sampled_from(names))
            live = data.draw(st.sets(st.sampled_from(names))) | {name}
            apply(name, gateways[name].view(sorted(live), now))
    for name in names:
        apply(name, gateways[name].view(names, now))
    for _ in range(10):
        while messages:
            deliver(0)
        now += RELEASE_SECONDS
        for name in names:
            apply(name, gateways[name].tick(now))
    held = [gateways[name].held for name in names]
    assert sum(map(len, held)) == SHARD_COUNT == len(frozenset().union(*held))

"""Who counts as alive."""

from __future__ import annotations

from holdfast.gateway.jetstream.serving.live_gateways import (
    DEAD_LOOKS,
    LiveGateways,
)
from holdfast.protocol.limits import MAX_GATEWAYS


def test_who_is_heard_lives_until_it_is_silent_for_some_looks() -> None:
    members = LiveGateways("a")
    assert members.live == ("a",)
    assert members.heard("b")
    assert not members.heard("b")
    assert members.live == ("a", "b")
    assert not any(members.look() for _ in range(DEAD_LOOKS - 1))
    assert members.look()
    assert members.live == ("a",)
    assert members.heard("b")


def test_who_loses_its_connection_is_dead_at_once_until_that_is_back() -> None:
    members = LiveGateways("a")
    members.heard("b")
    assert members.interest("b", False)
    assert members.live == ("a",)
    # A heartbeat that was on its way.
    assert not members.heard("b")
    assert members.live == ("a",)
    assert members.interest("b", True)
    assert members.live == ("a", "b")


def test_who_leaves_is_told_apart_until_it_is_gone() -> None:
    members = LiveGateways("a")
    members.heard("b")
    assert members.heard("b", leaving=True)
    assert (members.live, members.leaving) == (("a",), ("b",))
    # A message that was on its way.
    assert not members.heard("b")
    assert members.interest("b", False)
    assert (members.live, members.leaving) == (("a",), ())
    assert members.leave()
    assert members.live == ()


def test_strangers_do_not_fill_the_memory() -> None:
    members = LiveGateways("a")
    for number in range(2 * MAX_GATEWAYS):
        members.heard(f"b{number}")
    assert len(members.live) == MAX_GATEWAYS + 1
    assert not members.knows(f"b{2 * MAX_GATEWAYS - 1}")
    for _ in range(100):
        members.look()
    assert len(members.forgotten()) == MAX_GATEWAYS
    assert members.heard("c") and members.live == ("a", "c")


def test_what_it_hears_of_itself_and_of_unknown_ones_changes_nothing() -> None:
    members = LiveGateways("a")
    assert not members.heard("a")
    assert not members.interest("a", False)
    assert not members.interest("b", True)
    assert members.live == ("a",)

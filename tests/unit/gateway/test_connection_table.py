"""The connections of tokens, as far as what nats-server says tells."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.gateway.auth.connection_table import EXPECTED_SECONDS, ConnectionTable
from holdfast.gateway.auth.system_account import ConnectionArrival, ConnectionPlace
from tests.support.effort import examples

NOBODY = ConnectionPlace("", 0)


def place(number: int, server: str = "A") -> ConnectionPlace:
    return ConnectionPlace(server, number)


def arrival(token: str = "t", started_at: float = 0.0) -> ConnectionArrival:
    return ConnectionArrival(token, started_at)


def count(table: ConnectionTable, now: float = 0.0, besides: ConnectionPlace = NOBODY) -> int:
    return table.count("t", now, besides)


def test_who_was_let_in_counts_until_nobody_has_seen_it_for_long() -> None:
    table = ConnectionTable()
    table.let_in(place(1), "t", 0.0)
    assert (count(table), count(table, besides=place(1)), table.places("t")) == (1, 0, [])
    table.listed({}, 1.0)
    assert count(table, 1.0) == 1
    assert count(table, EXPECTED_SECONDS) == 0
    table.listed({}, EXPECTED_SECONDS + 1)
    assert len(table) == 0


def test_a_reload_of_nats_server_counts_nobody_twice() -> None:
    table = ConnectionTable()
    for _ in range(2):
        table.let_in(place(1), "t", 0.0)
        table.came(place(1), arrival(), 0.0)
    assert (count(table), table.places("t")) == (1, [place(1)])


def test_a_listing_finds_what_was_lost() -> None:
    table = ConnectionTable()
    table.came(place(1), arrival(), 0.0)
    table.listed({place(2): arrival("t", 5.0), place(3): arrival("t", 4.0)}, 1.0)
    assert table.places("t") == [place(3), place(2)]
    table.listed({}, 2.0, incomplete=["A"])
    assert count(table) == 2
    table.listed({}, 3.0, token="other")
    assert count(table) == 2
    table.listed({place(2): arrival()}, 4.0, token="t")
    assert table.places("t") == [place(2)]


def test_what_is_heard_while_nats_servers_answer_counts_more_than_their_answers() -> None:
    table = ConnectionTable()
    table.came(place(1), arrival(), 0.0)
    asked_at = 1.0
    table.left(place(1), 1.1)
    table.came(place(2), arrival(), 1.2)
    table.listed({place(1): arrival()}, asked_at)
    assert table.places("t") == [place(2)]


def test_a_nats_server_that_does_not_answer_locks_nobody_out() -> None:
    table = ConnectionTable()
    table.came(place(1, "A"), arrival(), 0.0)
    table.came(place(1, "B"), arrival(), 0.0)
    table.listed({place(1, "B"): arrival()}, 1.0)
    assert table.places("t") == [place(1, "B")]


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.booleans()), max_size=60))
@settings(deadline=None, max_examples=examples(100))
def test_after_a_listing_the_count_is_right_whatever_was_lost(
    deeds: list[tuple[int, bool, bool]],
) -> None:
    """Each deed: a connection comes or, if it is there, goes; whether that is heard; and whether
    all are listed afterwards."""
    table = ConnectionTable()
    there: dict[int, ConnectionPlace] = {}
    number, now = 0, 0.0
    for which, heard, listed in deeds:
        now += 1.0
        if which in there:
            gone = there.pop(which)
            if heard:
                table.left(gone, now)
        else:
            number += 1
            there[which] = place(number, "AB"[which % 2])
            if heard:
                table.came(there[which], arrival("t", now), now)
        if listed:
            table.listed({each: arrival() for each in there.values()}, now + 0.5)
            assert count(table, now) == len(there)
            assert set(table.places("t")) == set(there.values())
            assert set(table.tokens()) == ({"t"} if there else set())

"""Header blocks are read and extended as bytes, whatever the bytes are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.gateway.jetstream.api import headers

BLOCK = b"NATS/1.0\r\nNats-Msg-Id: 7\r\nX:  two\r\nX:three\r\nEmpty:\r\n\r\n"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Nats-Msg-Id", "7"),
        ("X", "two"),
        ("Empty", ""),
        ("nats-msg-id", None),
        ("Msg-Id", None),
        ("Nats-Msg", None),
        ("two", None),
    ],
)
def test_the_first_value_of_a_name_is_found_by_case(name: str, value: str | None) -> None:
    assert headers.get(BLOCK, name) == value


def test_fields_are_told_in_order_with_repetitions() -> None:
    assert list(headers.items(BLOCK)) == [
        ("Nats-Msg-Id", "7"),
        ("X", "two"),
        ("X", "three"),
        ("Empty", ""),
    ]
    assert list(headers.items(b"")) == []


def test_fields_are_appended_behind_those_that_are_there() -> None:
    assert headers.append(BLOCK, {"Nats-Stream": "S"}) == BLOCK[:-2] + b"Nats-Stream: S\r\n\r\n"
    assert headers.append(b"", [("A", 1)]) == headers.build([("A", "1")])
    assert headers.append(headers.EMPTY_BLOCK, {"A": 1}) == b"NATS/1.0\r\nA: 1\r\n\r\n"
    # A block that lost its end does not swallow the field.
    assert headers.get(headers.append(b"NATS/1.0\r\nX: 1", {"A": 2}), "A") == "2"


def test_a_value_makes_no_line_of_its_own() -> None:
    block = headers.build({"A": "1\r\nB: 2", "C\r\n": "x\n"})
    assert headers.get(block, "B") is None
    assert block == b"NATS/1.0\r\nA: 1  B: 2\r\nC  : x \r\n\r\n"


@pytest.mark.parametrize(
    ("block", "stored"),
    [
        (b"NATS/1.0 100 Idle\r\n\r\n", b""),
        (b"NATS/1.0 100 Idle\r\nX: 1\r\n\r\n", b"NATS/1.0\r\nX: 1\r\n\r\n"),
        (b"NATS/1.0\r\nX: 1\r\n\r\n", b"NATS/1.0\r\nX: 1\r\n\r\n"),
        (b"NATS/1.0 503", b""),
        (b"", b""),
        (b"nonsense", b"nonsense"),
    ],
)
def test_a_status_is_cut_from_the_first_line(block: bytes, stored: bytes) -> None:
    assert headers.cut_status(block) == stored


def test_a_status_block_has_its_code_description_and_fields() -> None:
    assert headers.status_block(503) == b"NATS/1.0 503\r\n\r\n"
    block = headers.status_block(408, "Request Timeout", {"Nats-Pending-Messages": 3})
    assert block == b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 3\r\n\r\n"
    assert headers.is_status(block) and not headers.is_status(BLOCK) and not headers.is_status(b"")


def test_a_field_is_removed_wherever_it_stands() -> None:
    assert headers.without(BLOCK, "X") == b"NATS/1.0\r\nNats-Msg-Id: 7\r\nEmpty:\r\n\r\n"
    assert headers.without(BLOCK, "x") == BLOCK
    assert headers.without(b"NATS/1.0\r\nX: 1\r\nX: 2\r\n\r\n", "X") == b""
    assert headers.without(b"NATS/1.0\r\nA: 0\r\nX: 1", "X") == b"NATS/1.0\r\nA: 0\r\n\r\n"


def test_a_field_is_replaced_in_its_place_or_appended() -> None:
    assert headers.replaced(BLOCK, "X", "9") == BLOCK.replace(b"X:  two", b"X: 9")
    assert headers.replaced(BLOCK, "Y", "9") == headers.append(BLOCK, {"Y": 9})
    assert headers.replaced(b"NATS/1.0\r\nX:1\r\n\r\n", "X", "22") == b"NATS/1.0\r\nX:22\r\n\r\n"
    assert headers.get(headers.replaced(b"NATS/1.0\r\nX: 1", "X", "2"), "X") == "2"


_NAMES = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8)
_VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=12)


@given(st.lists(st.tuples(_NAMES, _VALUES), max_size=5))
def test_what_is_built_is_read_again(fields: list[tuple[str, str]]) -> None:
    block = headers.build(fields)
    assert list(headers.items(block)) == [(name, value.lstrip(" ")) for name, value in fields]
    for name, _ in fields:
        first = next(value for other, value in fields if other == name)
        assert headers.get(block, name) == first.lstrip(" ")
        assert headers.get(headers.without(block, name), name) is None
        assert headers.get(headers.replaced(block, name, "z"), name) == "z"


@given(st.binary(max_size=60), st.sampled_from(["X", "Nats-TTL", "A"]))
def test_bytes_of_strangers_raise_nothing(noise: bytes, name: str) -> None:
    for block in (noise, b"NATS/1.0\r\n" + noise, b"NATS/1.0\r\nX:" + noise):
        headers.get(block, name)
        list(headers.items(block))
        headers.cut_status(block)
        assert headers.get(headers.without(block, name), name) is None
        assert headers.get(headers.append(block, {"Last": "1"}), "Last") is not None
        headers.replaced(block, name, "1")

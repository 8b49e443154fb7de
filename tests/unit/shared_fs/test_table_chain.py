"""The chain of a store in its rows: whatever is taken from them or changed in them is told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol.chain.checking import leaf_of_message
from holdfast.protocol.chain.hashing import GENESIS, ChainLink, after, leaf_of, leaf_of_set
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.header_block import HeaderBlock
from holdfast.protocol.messages import Message
from holdfast.shared_fs.archive.table_chain import (
    AckOutcome,
    LinkRow,
    check_table_chain,
    leaf_of_row,
    link_of_row,
)
from holdfast.shared_fs.store_file.encrypted.encrypted_values import (
    BOX_HEADER,
    Box,
    headers_in_table,
)

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
VALUES = st.lists(
    st.tuples(st.binary(max_size=9), st.dictionaries(TEXT, TEXT, max_size=3)), max_size=12
)


def rows_of(
    values: list[tuple[bytes, dict[str, str]]], *, is_kv: bool = False, base: int = 0
) -> list[dict[str, Any]]:
    """The rows of an honest table, with a base."""
    chain = GENESIS
    rows: list[dict[str, Any]] = [{"operation": "base", "seq": base, "chain": chain}]
    for number, (value, headers) in enumerate(values, base + 1):
        row: dict[str, Any] = {
            "operation": "set", "revision": number, "time": number * 5, "value": value,
            "headers": headers or None,
        }  # fmt: skip
        if is_kv:
            leaf = leaf_of_set(number, number * 5, value, headers, "k")
            row |= {"key": "k", "seq": None}
        else:
            leaf = leaf_of(number, number * 5, value, headers)
            row |= {"seq": number}
        chain = after(chain, leaf)
        rows.append({**row, "leaf": leaf, "chain": chain})
    return rows


def links_of(rows: list[dict[str, Any]], *, is_kv: bool = False) -> list[LinkRow]:
    return [link_of_row(row, is_kv=is_kv) for row in rows]


def acks_of(rows: list[dict[str, Any]]) -> list[ChainLink]:
    return [ChainLink(row["revision"], row["chain"]) for row in rows[1:]]


@given(VALUES, st.booleans(), st.integers(0, 1 << 40), st.data())
def test_an_honest_table_is_sound_in_any_order_and_without_values(
    values: list[tuple[bytes, dict[str, str]]], is_kv: bool, base: int, data: st.DataObject
) -> None:
    rows = rows_of(values, is_kv=is_kv, base=base)
    kept = acks_of(rows)
    erased = data.draw(st.sets(st.sampled_from(range(1, len(rows))))) if values else set()
    links = links_of(rows, is_kv=is_kv)
    links = [
        LinkRow("leaf", link.number, link.leaf, link.chain) if index in erased else link
        for index, link in enumerate(links)
    ]
    report = check_table_chain(data.draw(st.permutations(links)), kept, is_kv=is_kv)
    assert (report.problems, report.is_sound) == ((), True)
    assert {each.since for each in report.acks} <= {base + 1}
    [part] = report.parts
    assert part.told == (kept[-1] if kept else (base, GENESIS))


@given(VALUES.filter(bool), st.booleans(), st.data())
def test_any_one_change_is_told_and_no_later_ack_matches(
    values: list[tuple[bytes, dict[str, str]]], is_kv: bool, data: st.DataObject
) -> None:
    rows = rows_of(values, is_kv=is_kv)
    kept = acks_of(rows)
    at = data.draw(st.integers(1, len(values)))
    column = data.draw(st.sampled_from(["value", "time", "headers", "leaf", "chain", "row"]))
    changed = dict(rows[at])
    if column == "row":
        rows = [*rows[:at], *rows[at + 1 :]]
    else:
        before = changed[column]
        changed[column] = {
            "value": lambda: before + b"x",
            "time": lambda: before + 1,
            "headers": lambda: {**(before or {}), "x": "y", "z": "z"},
            "leaf": lambda: before[1:] + before[:1],
            "chain": lambda: before[1:] + before[:1],
        }[column]()
        if changed[column] == before:
            return
        rows[at] = changed
    report = check_table_chain(links_of(rows, is_kv=is_kv), kept, is_kv=is_kv)
    # Whether the last row is missing can only be told by who kept its ack.
    assert report.problems or (column == "row" and at == len(values))
    outcomes = {each.number: each.outcome for each in report.acks}
    for number, outcome in outcomes.items():
        assert (outcome is AckOutcome.MATCHED) == (number < at or column in ("leaf", "chain"))


@given(st.lists(st.builds(
    LinkRow,
    st.sampled_from(["set", "leaf", "base", "delete"]),
    st.integers(-2, 6),
    st.none() | st.sampled_from([bytes(32), b"x", GENESIS]),
    st.none() | st.sampled_from([bytes(32), b"", GENESIS]),
    st.none() | st.just(bytes(32)),
)), st.booleans())  # fmt: skip
def test_no_rows_make_it_fail(rows: list[LinkRow], is_kv: bool) -> None:
    report = check_table_chain(rows, [ChainLink(3, GENESIS)], is_kv=is_kv)
    assert len(report.acks) == 1


def test_a_row_that_is_no_message_has_no_leaf() -> None:
    row = {"operation": "set", "revision": 1, "seq": 1, "time": 5, "value": b"v", "headers": None}
    assert leaf_of_row(row, is_kv=False) == leaf_of_message(
        Message(1, b"v", {}, 5, 1, None, None)
    )
    broken: list[dict[str, Any]] = [
        {"value": None}, {"seq": -1}, {"time": 1 << 70}, {"large_bytes": 3},
        {"large_bytes": 3, "large_sha256": "zz"}, {"stored_value": b"no frame"},
        {"stored_headers": b"not a block", "headers": {"a": "b"}},
    ]  # fmt: skip
    for change in broken:
        assert leaf_of_row({**row, **change}, is_kv=False) == bytes(32), change
    assert leaf_of_row({**row, "key": None}, is_kv=True) == bytes(32)
    block = HeaderBlock.of([("a", "b"), ("a", "c")])
    shown = {**row, "headers": {"a": "b, c"}, "stored_headers": block.block}
    assert leaf_of_row(shown, is_kv=False) == leaf_of(1, 5, b"v", block)


def test_a_row_that_is_encrypted_proves_nothing_and_does_not_break_the_chain() -> None:
    rows = rows_of([(b"1", {}), (b"2", {}), (b"3", {})])
    box = Box(1, bytes(16), 1, bytes(16), rows[2]["leaf"]).packed()
    rows[2] |= {"value": b"?", "headers": headers_in_table(box)}
    report = check_table_chain(links_of(rows), acks_of(rows))
    assert (report.problems, report.unproven, report.is_sound) == ((), (2,), True)
    assert report.believed == 1
    for broken in ("AA==", "\0", headers_in_table(box[:-1])[BOX_HEADER]):
        rows[2] |= {"headers": {BOX_HEADER: broken}}
        told = check_table_chain(links_of(rows)).problems
        assert told == ("message 2 is not what it was: its columns do not give its leaf",)


def test_a_header_that_an_application_called_like_that_of_a_box_is_a_header() -> None:
    box = headers_in_table(Box(1, bytes(16), 1, bytes(16), bytes(32)).packed())
    rows = rows_of([(b"1", {BOX_HEADER: "mine"}), (b"2", {**box, "a": "b"}), (b"3", box)])
    report = check_table_chain(links_of(rows), acks_of(rows))
    assert (report.problems, report.unproven, report.is_sound) == ((), (), True)


def test_rows_twice_count_once_and_differing_ones_are_told() -> None:
    rows = rows_of([(b"1", {}), (b"2", {})])
    assert check_table_chain(links_of([*rows, *rows])).problems == (
        "message 1 is in the table more than once, and not the same",
        "message 2 is in the table more than once, and not the same",
    )
    # A base that says what is known anyway is fine, and one that says otherwise is not.
    middle = {"operation": "base", "seq": 1, "chain": rows[1]["chain"]}
    assert check_table_chain(links_of([*rows, middle])).problems == ()
    other = {"operation": "base", "seq": 1, "chain": bytes(32)}
    assert check_table_chain(links_of([*rows, other])).problems == (
        "the base at 1 tells another chain than message 1",
    )


def test_what_was_kept_must_have_a_chain() -> None:
    with pytest.raises(InvalidArgumentError):
        check_table_chain([], [ChainLink(1, b"short")])

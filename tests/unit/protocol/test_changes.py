"""The rows of changes: each field by its name, whatever trailing elements a row has."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.protocol import changes
from holdfast.protocol.errors import MalformedFrameError
from holdfast.protocol.header_block import HeaderBlock
from tests.support.present import present


@pytest.mark.parametrize("given", range(2, 10))
def test_what_a_row_leaves_out_is_nothing_and_what_it_has_beyond_is_ignored(given: int) -> None:
    row = [changes.CHANGE_SET_MESSAGE, 7, b"v", {"h": "x"}, "id", 99, "a.b", 55, "later"]
    said = changes.message_set(row[: 1 + given])
    expected = [7, b"v", {"h": "x"}, "id", 99, "a.b", 55][:given]
    assert list(said) == expected + [None] * (7 - len(expected))
    row = [changes.CHANGE_SET_ENTRY, "k", b"v", {"h": "x"}, 99, 55, "of a later version"]
    said_of_entry = changes.entry_set(row[: 1 + given])
    expected = ["k", b"v", {"h": "x"}, 99, 55][:given]
    assert list(said_of_entry) == expected + [None] * (5 - len(expected))


def test_sets_are_told_apart_by_what_they_have_beside_a_value() -> None:
    assert changes.is_plain_set((changes.CHANGE_SET_MESSAGE, 7, b"v"))
    assert not changes.is_plain_set([changes.CHANGE_SET_MESSAGE, 7, [b"u", 1, b"", 2]])
    assert changes.is_plain_set([changes.CHANGE_SET_MESSAGE, 7, b"v", {"h": "x"}])
    assert not changes.is_plain_set([changes.CHANGE_SET_MESSAGE, 7, b"v", None, "id"])
    large = [b"u", 5, b"sha", 77]
    found = changes.large_value([changes.CHANGE_SET_ENTRY, "k", [*large, "of a later version"]])
    assert found is not None
    assert (found.upload_id, found.size_bytes, found.crc32) == (b"u", 5, 77)
    assert changes.large_value([changes.CHANGE_SET_ENTRY, "k", b"v"]) is None


def test_every_other_row_is_read_by_names_too() -> None:
    assert changes.number_of([changes.CHANGE_CLEAR]) == changes.CHANGE_CLEAR
    assert changes.deleted([changes.CHANGE_DELETE_ENTRIES, ["k"]]) == ["k"]
    assert changes.trimmed_to([changes.CHANGE_TRIM, 9]) == 9
    assert changes.configured([changes.CHANGE_CONFIGURE, {"max_bytes": 1}]) == {"max_bytes": 1}
    assert changes.archived([changes.CHANGE_ARCHIVE, 9, "t"]).table == "t"
    assert changes.dropped_uploads([changes.CHANGE_DROP_UPLOADS, [b"u"]]) == [b"u"]
    row = [changes.CHANGE_PUT_CHUNK, b"u", 3, b"data", 77]
    assert changes.chunk(row) == changes.Chunk(upload_id=b"u", offset=3, data=b"data", crc32=77)
    assert changes.chunk(row).end == 7
    assert changes.chunk(changes.without_data(row)) == (b"u", 3, None, 77, None)
    assert changes.chunk([*row, 2]).end == 5, "it is kept encrypted"


def test_the_rows_of_cursors_name_what_they_say() -> None:
    row = [changes.CHANGE_SET_CURSOR, "c", b"config", None, [[7, b"data"]], [6], "later"]
    said = changes.cursor_set(row)
    assert changes.cursor_name(row) == said.name == "c"
    assert (said.config, said.state, said.rows, said.removed) == (
        b"config", None, [[7, b"data"]], [6],
    )  # fmt: skip
    assert changes.cursor_name([changes.CHANGE_DELETE_CURSOR, "c"]) == "c"


def test_a_change_carries_its_subject_and_its_header_block() -> None:
    block = HeaderBlock.of({"a": "1"}).block
    wire = [changes.CHANGE_SET_MESSAGE, 7, b"v", block, None, None, "a.b"]
    message = changes.change_from_wire(wire, 9, 1000).message
    assert message is not None
    assert (message.seq, message.subject, message.headers) == (7, "a.b", HeaderBlock(block))
    plain = changes.change_from_wire([changes.CHANGE_SET_MESSAGE, 7, b"v"], 9, 1000).message
    assert plain is not None
    assert (plain.subject, plain.headers) == (None, {})
    entry = changes.change_from_wire([changes.CHANGE_SET_ENTRY, "k", b"v", block], 9, 1000).entry
    assert entry is not None and entry.headers == HeaderBlock(block)


def test_the_rows_of_consumers_name_what_they_say() -> None:
    configured = changes.consumer_configured([changes.CHANGE_CONSUMER_CONFIGURE, 4, "c", {}, 9])
    assert (configured.id, configured.name, configured.next_seq) == (4, "c", 9)
    row = [changes.CHANGE_CONSUMER_FETCH, 4, 9, 1000, [8], [[7, 2]], [6], [5]]
    fetched = changes.consumer_fetched(row)
    assert changes.consumer_id(row) == fetched.id == 4
    assert (fetched.first, fetched.again) == ([8], [[7, 2]])
    assert (fetched.gone, fetched.given_up) == ([6], [5])
    acked = changes.consumer_acked([changes.CHANGE_CONSUMER_ACK, 4, [1], [2], [[3, 1000, 1]]])
    assert (acked.acked, acked.given_up, acked.moved) == ([1], [2], [[3, 1000, 1]])


def test_a_set_has_its_subject_and_its_headers_in_either_form() -> None:
    block = b"NATS/1.0\r\nh: x\r\n\r\n"
    change = changes.change_from_wire([1, 7, b"v", block, None, None, "a.b"], 9, 1000)
    message = present(change.message)
    assert (message.seq, message.subject, message.revision) == (7, "a.b", 9)
    assert present(message.headers).block == block  # type: ignore[attr-defined]
    plain = present(changes.change_from_wire([1, 7, b"v"], 9, 1000).message)
    assert (plain.headers, plain.subject, plain.large) == ({}, None, None)


@pytest.mark.parametrize(
    "wire",
    [
        *([], [1], [1, 7], ["1", 7, b""], [99], [1, "7", b""], [1, True, b""], [1, 7, "text"]),
        *([1, 7, b"", "text"], [1, 7, b"", 5], [1, 7, b"", None, None, None, 5]),
        *([1, 7, [b"id"]], [5, 7, b""], [5, "k", b"", [1]], [3, 7], [3, ["7"]], [4, "7"], [4]),
    ],
)
def test_a_change_of_the_wrong_shape_is_told(wire: list[Any]) -> None:
    with pytest.raises(MalformedFrameError):
        changes.change_from_wire(wire, 1, 1)

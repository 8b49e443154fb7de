"""The rows of changes: each field by its name, whatever trailing elements a row has."""

from __future__ import annotations

import pytest

from holdfast.protocol import changes


@pytest.mark.parametrize("given", range(2, 8))
def test_what_a_row_leaves_out_is_nothing_and_what_it_has_beyond_is_ignored(given: int) -> None:
    row = [changes.CHANGE_SET_MESSAGE, 7, b"v", {"h": "x"}, "id", 99, "of a later version"]
    said = changes.message_set(row[: 1 + given])
    expected = [7, b"v", {"h": "x"}, "id", 99][:given]
    assert list(said) == expected + [None] * (5 - len(expected))
    row = [changes.CHANGE_SET_ENTRY, "k", b"v", {"h": "x"}, 99, "of a later version"]
    said_of_entry = changes.entry_set(row[: 1 + given])
    expected = ["k", b"v", {"h": "x"}, 99][:given]
    assert list(said_of_entry) == expected + [None] * (4 - len(expected))


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
    assert changes.chunk(changes.without_data(row)) == (b"u", 3, None, 77)


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

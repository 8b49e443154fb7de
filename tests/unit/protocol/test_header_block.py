"""Header blocks: kept byte for byte, read as a mapping, refused if they are none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol.errors import InvalidArgumentError, TooLargeError
from holdfast.protocol.header_block import FIRST_BYTE, HeaderBlock, check_block, headers_from_wire
from holdfast.protocol.limits import MAX_HEADER_BLOCK_BYTES
from holdfast.shared_fs.store_file.applying import pack_headers

_NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=":"))
_TEXTS = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]))


@given(st.lists(st.tuples(_NAMES.filter(bool), _TEXTS.map(lambda text: text.strip(" \t")))))
def test_headers_survive_as_a_block(pairs: list[tuple[str, str]]) -> None:
    found = HeaderBlock.of(pairs)
    check_block(found.block)
    assert found.block[0] == FIRST_BYTE
    assert list(found) == list(dict.fromkeys(name for name, _ in pairs))
    for name in found:
        texts = [text for each, text in pairs if each == name]
        assert (found[name], found.all(name)) == (texts[0], texts)
        assert found.joined()[name] == ", ".join(texts)
    assert HeaderBlock(found.block) == dict(found)


@given(st.dictionaries(st.text(), st.text()))
def test_no_packed_map_begins_as_a_block_does(headers: dict[str, str]) -> None:
    packed = pack_headers(headers)
    assert packed is None or packed[0] != FIRST_BYTE


def test_a_block_is_read_as_nats_clients_read_it() -> None:
    block = (
        b"NATS/1.0 100 Idle\r\nA: 1\r\na:2 \r\nA:\t3\r\nempty:\r\nu: \xc3\xa9\r\nl: \xe9\r\n\r\n"
    )
    check_block(block)
    found = HeaderBlock(block)
    assert dict(found) == {"A": "1", "a": "2", "empty": "", "u": "é", "l": "é"}
    assert found.all("A") == ["1", "3"]
    assert found.all("none") == []
    assert found.block == block


@pytest.mark.parametrize(
    "block",
    [
        b"", b"NATS/1.0", b"NATS/1.0\r\n", b"NATS/1.0\n\n", b"NATS/2.0\r\n\r\n",
        b"NATS/1.01\r\n\r\n",
        b"NATS/1.0\r\nA: 1\r\n", b"NATS/1.0\r\nA\r\n\r\n", b"NATS/1.0\r\n: 1\r\n\r\n",
        b"NATS/1.0\r\nA: 1\nB: 2\r\n\r\n", b"NATS/1.0\r\n\r\nA: 1\r\n\r\n", b"\x81\xa1a\xa1b",
        b"NATS/1.0\r\n A: 1\r\n\r\n", b"NATS/1.0\r\nA\x00: 1\r\n\r\n",
    ],
)  # fmt: skip
def test_what_is_no_block_is_refused_and_reading_it_does_not_fail(block: bytes) -> None:
    with pytest.raises(InvalidArgumentError):
        check_block(block)
    assert set(HeaderBlock(block)) <= {"A", "B"}


def test_a_block_is_bounded() -> None:
    room = MAX_HEADER_BLOCK_BYTES - len(HeaderBlock.of({"a": ""}).block)
    check_block(HeaderBlock.of({"a": "x" * room}).block)
    with pytest.raises(TooLargeError):
        HeaderBlock.of({"a": "x" * (room + 1)})


@pytest.mark.parametrize(
    "headers",
    [{"a": "1\r\nb: 2"}, {"a:b": "1\r\n"}, {"a:b": "1"}, {"": "1"}, {"a": "\ud800"}],
)
def test_a_block_is_not_made_of_what_would_read_otherwise(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidArgumentError):
        HeaderBlock.of(headers)


@given(st.binary(max_size=200))
def test_reading_any_bytes_ends(tail: bytes) -> None:
    found = HeaderBlock(b"NATS/1.0\r\n" + tail)
    assert len(found) == len(list(found.items()))
    assert found


def test_headers_come_from_the_wire_as_a_map_or_as_a_block() -> None:
    assert headers_from_wire(None) == headers_from_wire({}) == {}
    assert headers_from_wire({"a": "1"}) == {"a": "1"}
    assert headers_from_wire(HeaderBlock.of({"a": "1"}).block)["a"] == "1"


def test_lines_are_added_and_removed_and_the_others_stay_as_they_are() -> None:
    block = HeaderBlock(b"NATS/1.0\r\nb:  2 \r\na: 1\r\nb: 3\r\n\r\n")
    more = block.with_added({"c": "4", "b": "5"})
    assert more.block == b"NATS/1.0\r\nb:  2 \r\na: 1\r\nb: 3\r\nc: 4\r\nb: 5\r\n\r\n"
    assert more.without(["b"]).block == b"NATS/1.0\r\na: 1\r\nc: 4\r\n\r\n"
    assert more.without(["B"]) is more
    assert block.without(["a", "b"]).block == b"NATS/1.0\r\n\r\n"
    with pytest.raises(TooLargeError):
        block.with_added({"long": "x" * MAX_HEADER_BLOCK_BYTES})
    with pytest.raises(InvalidArgumentError):
        block.with_added({"a": "1\r\nb: 2"})

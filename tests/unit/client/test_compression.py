"""Compressed values: what is written, and what is made of frames that are damaged or hostile."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.client.values.codec import RAW, codec_of
from holdfast.client.values.values import Values
from holdfast.client.wire.operations import entry_from_wire
from holdfast.protocol import compression
from holdfast.protocol.compression import ENCODING_HEADER, ZSTD, compressed, decompressed
from holdfast.protocol.errors import InvalidArgumentError, TooLargeError, ValueUnreadableError
from holdfast.protocol.header_block import HeaderBlock
from holdfast.protocol.limits import COMPRESS_ABOVE_BYTES, MAX_HEADERS_BYTES, MAX_VALUE_BYTES
from holdfast.protocol.messages import Change, ChangeKind, Entry, LargeValue, Message
from holdfast.shared_fs.store_file.exported_values import exported, exported_bytes, stored_again
from tests.support.effort import examples

MARK = {ENCODING_HEADER: ZSTD}
BLOCK_BYTES = 128 * 1024
TEXT = b"a holdfast is what anchors kelp to the rock. " * 100


def values(
    codec: str | None = None, *, compresses: bool = True, lenient: bool = False
) -> Values[Any]:
    link: Any = SimpleNamespace(compresses=compresses)
    return Values(link, "notes", codec_of(codec), lenient=lenient)


@given(
    st.binary(max_size=4096),
    st.integers(1, 40),
    st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=3),
)
@settings(max_examples=examples(50))
def test_what_is_compressed_comes_back_with_its_headers(
    value: bytes, times: int, headers: dict[str, str]
) -> None:
    packed, marked = compressed(value * times, headers)
    assert decompressed(packed, marked or {}, "it") == (value * times, headers)
    assert len(packed) <= len(value * times)


def test_short_values_and_such_that_save_less_than_an_eighth_stay_as_they_are() -> None:
    noise = random.Random(1).randbytes(64 * 1024)
    for value in (b"", b"x" * COMPRESS_ABOVE_BYTES, noise, b"x" * (MAX_VALUE_BYTES + 1)):
        assert compressed(value, {"a": "b"}) == (value, {"a": "b"})
    packed, headers = compressed(b"x" * (COMPRESS_ABOVE_BYTES + 1), None)
    assert len(packed) < 64
    assert headers == MARK
    nearly_too_much = {"a": "b" * (MAX_HEADERS_BYTES - 1)}
    assert compressed(TEXT, nearly_too_much) == (TEXT, nearly_too_much)


def bomb(size_bytes: int) -> bytes:
    """A frame of so many zeros, made at once: each of its blocks is one byte and a count."""
    count, rest = divmod(size_bytes, BLOCK_BYTES)
    header = b"\x28\xb5\x2f\xfd\x80\x48" + size_bytes.to_bytes(4, "little")
    block = (BLOCK_BYTES << 3 | 2).to_bytes(3, "little") + b"\0"
    return header + block * count + (rest << 3 | 3).to_bytes(3, "little") + b"\0"


def test_a_bomb_is_what_it_claims() -> None:
    assert zstandard.decompress(bomb(BLOCK_BYTES + 7)) == bytes(BLOCK_BYTES + 7)


def without_a_size(value: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(value)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"not zstd at all",
        compressed(TEXT, None)[0][:-20],
        compressed(TEXT, None)[0][:-1] + b"\0",
        compressed(TEXT, None)[0] + b"more",
        bomb(MAX_VALUE_BYTES + 1),
        bomb(1 << 30),
        without_a_size(TEXT),
    ],
    ids=["empty", "foreign", "cut", "flipped", "longer", "over", "bomb", "sizeless"],
)
def test_a_damaged_or_hostile_value_is_an_error_of_its_own_and_exported_as_it_is(
    value: bytes,
) -> None:
    with pytest.raises(ValueUnreadableError, match="message 7 of notes"):
        values().message(Message(7, value, MARK, 1, 1))
    assert exported(value, MARK) == (value, MARK)
    assert exported_bytes(value, MARK) <= MAX_VALUE_BYTES


def test_an_encoding_that_is_not_known_is_named() -> None:
    with pytest.raises(ValueUnreadableError, match="unknown encoding 'br'"):
        decompressed(b"x", {ENCODING_HEADER: "br"}, "it")


def test_a_reader_without_zstandard_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed, headers = compressed(TEXT, None)
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    monkeypatch.setattr(compression, "_zstd", None)
    assert not compression.is_available()
    with pytest.raises(ValueUnreadableError, match=r"install '\.\[compression\]'"):
        decompressed(packed, headers or {}, "it")


def test_the_header_of_compressed_values_is_taken_for_applications() -> None:
    for compresses in (True, False):
        with pytest.raises(InvalidArgumentError, match=ENCODING_HEADER):
            values(compresses=compresses).stored(b"x", MARK)
        with pytest.raises(InvalidArgumentError, match=ENCODING_HEADER):
            values().stored_or_large(LargeValue(b"u" * 16, 1, b"s" * 32, 0), MARK)


def test_what_is_no_value_is_refused_as_ever() -> None:
    wrong: Any = "text"
    with pytest.raises(InvalidArgumentError):
        values().stored(wrong, None)
    with pytest.raises(TooLargeError):
        values().stored(b"x" * (MAX_VALUE_BYTES + 1), None)


@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_a_codec_comes_before_compression_and_after_decompression(codec: str) -> None:
    coded = values(codec)
    document = {"title": "kelp", "lines": ["rock"] * 1000}
    stored, headers = coded.stored(coded.encoded(document), {"by": "ada"})
    assert len(stored) < 200
    entry = Entry("k", bytes(stored), headers or {}, 3, 4)
    assert coded.entry(entry) == Entry("k", document, {"by": "ada"}, 3, 4)
    change = coded.change(Change(ChangeKind.SET, 3, 4, entry=entry))
    assert change.entry == coded.entry(entry)
    deleted = Change(ChangeKind.DELETE, 5, 6, keys=("k",))
    assert coded.change(deleted) is deleted
    foreign = Entry("k", b"\xff\xc1", {}, 1, 1)
    with pytest.raises(ValueUnreadableError, match="key 'k' of notes"):
        coded.entry(foreign)
    for listed in (
        coded.listed_entry(foreign),
        coded.change(Change(ChangeKind.SET, 1, 1, entry=foreign)).entry,
    ):
        assert listed is not None
        assert isinstance(listed, Entry)
        assert (listed.key, listed.revision, listed.size_bytes) == ("k", 1, 2)
        assert listed.unreadable is not None
        assert "UnreadableEntry(key='k'" in repr(listed)
        assert listed._replace(key="l").key == "l"
        with pytest.raises(ValueUnreadableError, match="key 'k' of notes"):
            _ = listed.value
    assert coded.listed_entry(entry).unreadable is None
    with pytest.raises(InvalidArgumentError):
        coded.encoded(object())


def test_raw_values_without_the_header_are_passed_on_untouched() -> None:
    message = Message(1, b"x", {"a": "b"}, 1, 1)
    assert values().message(message) is message
    large = message._replace(large=LargeValue(b"u" * 16, 1, b"s" * 32, 0), value=b"")
    assert values("json").message(large) is large
    assert values().encoded(b"x") == b"x"
    assert RAW.encode(b"x") == b"x"


def test_what_was_exported_is_about_as_small_again_as_it_was_stored() -> None:
    for text in (TEXT, b"kelp" * 100):
        packed = zstandard.ZstdCompressor(level=19).compress(text)
        assert exported(packed, MARK) == (text, None)
        again, headers = stored_again(text, None, len(packed) + 20)
        assert decompressed(again, headers or {}, "it") == (text, {})
        assert len(again) < len(packed) + 20
    assert stored_again(b"short", {"a": "b"}, 100) == (b"short", {"a": "b"})


def test_a_value_with_a_header_block_is_never_compressed_nor_taken_for_compressed() -> None:
    block = HeaderBlock(b"NATS/1.0\r\nhf-encoding: zstd\r\n\r\n")
    value = b"again and " * 1000
    stored = values().stored(value, block)
    assert stored == (value, block)
    assert stored[1] is block
    assert exported(value, block.block) == (value, block.block)
    message = Message(1, value, block, 0, 1, None, "a")
    assert values().message(message) is message
    # Owners took header blocks for entries once.
    entry = entry_from_wire(["k", 1, 0, value, block.block])
    assert entry.headers == block and values().entry(entry) is entry

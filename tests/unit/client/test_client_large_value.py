"""Files of a call that is cancelled: none stays open, and no draft stays behind. And a large value
that is replaced while it is read."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.client.large_values.large_value import with_large_value
from holdfast.client.large_values.value_source import opened, write_file
from holdfast.protocol.errors import ValueReplacedError
from holdfast.protocol.messages import Entry, LargeValue


async def test_what_is_opened_for_a_call_that_was_cancelled_is_undone_when_it_has_come_about() -> (
    None
):
    begun, may_open, undone = threading.Event(), threading.Event(), threading.Event()

    def open_file() -> str:
        begun.set()
        assert may_open.wait(30)
        return "file"

    opening = asyncio.create_task(
        opened(open_file, lambda file: undone.set() if file == "file" else None)
    )
    assert await asyncio.to_thread(begun.wait, 30)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert not undone.is_set()
    may_open.set()
    assert undone.wait(30)


async def test_a_file_that_was_being_written_when_the_call_was_cancelled_is_not_there(
    tmp_path: Path,
) -> None:
    half = asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        yield b"half of it"
        half.set()
        await asyncio.Event().wait()

    writing = asyncio.create_task(write_file(chunks(), tmp_path / "target"))
    await half.wait()
    assert list(tmp_path.iterdir()), "the draft"
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert not list(tmp_path.iterdir())


def large_entry(revision: int) -> Entry:
    return Entry("key", b"", {}, revision, 0, LargeValue(b"u" * 16, 3, b"s" * 32, 0))


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        (large_entry(2), large_entry(2)._replace(value=b"2", large=None)),
        (Entry("key", b"small", {}, 2, 0), Entry("key", b"small", {}, 2, 0)),
        (None, None),
    ],
)
def test_a_large_value_that_is_replaced_while_it_is_read_gives_way_to_what_is_there_now(
    later: Entry | None, expected: Entry | None
) -> None:
    async def read(entry: Entry) -> bytes:
        if entry.revision == 1:
            raise ValueReplacedError(what="key")
        return b"%d" % entry.revision

    async def find() -> Entry | None:
        return later

    assert asyncio.run(with_large_value(large_entry(1), read, find)) == expected


def test_a_large_value_of_which_chunks_are_gone_though_nobody_replaced_it_is_an_error() -> None:
    async def read(entry: Entry) -> bytes:
        raise ValueReplacedError(what="key")

    async def find() -> Entry | None:
        return large_entry(1)

    with pytest.raises(ValueReplacedError):
        asyncio.run(with_large_value(large_entry(1), read, find))

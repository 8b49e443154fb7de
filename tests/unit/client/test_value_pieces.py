"""Pieces of large values: a thread works on one of them while the next one comes or goes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.client.large_values import value_source
from holdfast.client.large_values.value_source import Beside, write_file


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_source, "FILE_PIECE_BYTES", 10)


CHUNKS = [b"%d" % number * 3 for number in range(50)]


async def test_chunks_are_asked_for_while_a_piece_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, may_write = asyncio.Event(), threading.Event()
    write = value_source._write

    def waiting(*arguments: object) -> None:
        assert may_write.wait(30)
        write(*arguments)  # type: ignore[arg-type]

    async def chunks() -> AsyncIterator[bytes]:
        for number, chunk in enumerate(CHUNKS):
            if number == 5:
                # The first piece is not written yet.
                asked.set()
            yield chunk

    monkeypatch.setattr(value_source, "_write", waiting)
    writing = asyncio.create_task(write_file(chunks(), tmp_path / "target"))
    await asked.wait()
    may_write.set()
    await writing
    assert (tmp_path / "target").read_bytes() == b"".join(CHUNKS)


@pytest.mark.parametrize("fails_at", [1, 3])
async def test_a_disk_that_is_full_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    calls: list[int] = []

    def full(*_: object) -> None:
        calls.append(1)
        if len(calls) == fails_at:
            raise OSError(28, "No space left on device")

    async def chunks() -> AsyncIterator[bytes]:
        for chunk in CHUNKS:
            yield chunk

    monkeypatch.setattr(value_source, "_write", full)
    with pytest.raises(OSError, match="No space left"):
        await write_file(chunks(), tmp_path / "target")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fails", [False, True])
async def test_whoever_gives_up_waits_for_the_thread(fails: bool) -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), list[str]()

    def work() -> None:
        begun.set()
        assert may_end.wait(30)
        ended.append("thread")
        if fails:
            raise OSError

    async def give_up() -> None:
        async with Beside[None]() as beside:
            beside.begin(work)
            await beside.done()

    caller = asyncio.create_task(give_up())
    assert await asyncio.to_thread(begun.wait, 30)
    caller.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not caller.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended == ["thread"]

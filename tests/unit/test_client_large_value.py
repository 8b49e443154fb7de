"""Files of a call that is cancelled: none stays open, and no draft stays behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.client.large_value import _opened, write_file


def test_what_is_opened_for_a_call_that_was_cancelled_is_undone_when_it_has_come_about() -> None:
    begun, may_open, undone = threading.Event(), threading.Event(), threading.Event()

    def open_file() -> str:
        begun.set()
        assert may_open.wait(30)
        return "file"

    async def main() -> None:
        opening = asyncio.create_task(
            _opened(open_file, lambda file: undone.set() if file == "file" else None)
        )
        assert await asyncio.to_thread(begun.wait, 30)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert not undone.is_set()
        may_open.set()

    asyncio.run(main())
    assert undone.wait(30)


def test_a_file_that_was_being_written_when_the_call_was_cancelled_is_not_there(
    tmp_path: Path,
) -> None:
    async def main() -> None:
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

    asyncio.run(main())

"""Reads the values and headers that commands take: an argument, stdin, or stdin line by line."""

from __future__ import annotations

import asyncio
import io
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import BinaryIO, Final, cast

import click

from holdfast.protocol.errors import TooLargeError
from holdfast.protocol.limits import MAX_FRAME_OPERATIONS, MAX_VALUE_BYTES

#: The size of one read of stdin with --lines.
_READ_BYTES: Final = 256 * 1024
#: The limits of the lines in one append: well within one frame, with the protocol's overhead.
_BATCH_BYTES: Final = 512 * 1024
_BATCH_LINES: Final = MAX_FRAME_OPERATIONS // 2


def read_value(argument: str | None) -> bytes | BinaryIO:
    """Return the argument, or the content of stdin if the argument is missing or `-`. If that is
    too large for one message, return a file that reads it from its beginning."""
    if argument is not None and argument != "-":
        return argument.encode(errors="surrogateescape")
    start = sys.stdin.buffer.read(MAX_VALUE_BYTES + 1)
    if len(start) <= MAX_VALUE_BYTES:
        return start
    return cast("BinaryIO", _Continued(start, sys.stdin.buffer))


class _Continued(io.RawIOBase):
    """A file whose start was read already. It can be read once more from its beginning."""

    def __init__(self, start: bytes, rest: BinaryIO) -> None:
        self._start = io.BytesIO(start)
        self._rest = rest

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        return self._start.read(size) or self._rest.read(size)


def parse_headers(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str] | None:
    """Turn each `NAME=VALUE` of an option into a header (a click callback)."""
    headers = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{value!r} is not NAME=VALUE", context, parameter)
        headers[name] = text
    return headers or None


async def line_batches() -> AsyncIterator[list[bytes]]:
    """Yield the lines of stdin without their ends, in batches, as soon as they arrive. So a slow
    writer's lines are stored at once, and a file's lines in large batches.

    Raises TooLargeError for a line over MAX_VALUE_BYTES.
    """
    stdin = sys.stdin.buffer
    pending = b""
    while chunk := await _read_some(stdin):
        *lines, pending = (pending + chunk).split(b"\n")
        if len(pending) > MAX_VALUE_BYTES:
            raise TooLargeError(
                what="a line", size=f"{len(pending)} or more", limit=MAX_VALUE_BYTES
            )
        for batch in _batches(lines):
            yield batch
    if pending:
        yield [pending]


def _batches(lines: list[bytes]) -> Iterator[list[bytes]]:
    """Cut lines into batches that fit into a frame, even with a long line."""
    batch: list[bytes] = []
    size_bytes = 0
    for line in lines:
        if batch and (size_bytes + len(line) > _BATCH_BYTES or len(batch) >= _BATCH_LINES):
            yield batch
            batch, size_bytes = [], 0
        batch.append(line)
        size_bytes += len(line)
    if batch:
        yield batch


async def _read_some(stdin: BinaryIO) -> bytes:
    """Read the bytes that are available, at least one, or none at the end.

    It reads in a daemon thread of its own, because a pending read cannot be cancelled, and the
    loop's executor would wait for it on Ctrl-C. It reads from the descriptor, because a thread
    inside a buffered read breaks the interpreter's shutdown.
    """
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[bytes] = loop.create_future()

    def read() -> bytes:
        try:
            descriptor = stdin.fileno()
        except io.UnsupportedOperation:
            return stdin.read(_READ_BYTES)
        return os.read(descriptor, _READ_BYTES)

    def settle(chunk: bytes, error: OSError | None) -> None:
        if arrived.done():
            return
        if error is not None:
            arrived.set_exception(error)
        else:
            arrived.set_result(chunk)

    def work() -> None:
        chunk, failure = b"", None
        try:
            chunk = read()
        except OSError as error:
            failure = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, chunk, failure)

    threading.Thread(target=work, daemon=True, name="stdin").start()
    return await arrived

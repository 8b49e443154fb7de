"""Values from files and to files, of any size, with a progress bar if stderr is a terminal.

A file becomes a value completely or not at all, and so does a value become a file
(`client/large_values/large_value.py`). Neither is ever in memory as a whole.
"""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

import click

from holdfast.cli.render import print_bytes, print_json, saved_json, size
from holdfast.cli.settings import Settings
from holdfast.client import ValueReader
from holdfast.client.large_values.value_source import write_file

#: Shows the progress, in bytes.
Show = Callable[[int], None]

FILE_OPTION: Final = click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="PATH",
    help="Send the content of this file, of any size.",
)
OUTPUT_OPTION: Final = click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PATH",
    help="Write to this file; a failure leaves no partial file.",
)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file to send, and show how much of it was read."""
    with _ShownFile(path) as file:
        # A pipe has no size.
        status = os.fstat(file.fileno())
        total_bytes = status.st_size if stat.S_ISREG(status.st_mode) else None
        with _bar(path.name, total_bytes) as file.show:
            yield file


async def write_value(
    settings: Settings, reader: ValueReader[Any], output: Path | None, *, alone: bool = False
) -> None:
    """Write a value to a file and report it, or write it to stdout, byte for byte. With `alone`, a
    line break follows on a terminal, so that the prompt does not follow the value.

    Raises OSError and the errors of the reader.
    """
    if output is None:
        last = b""
        async for chunk in reader:
            print_bytes(chunk)
            last = chunk or last
        if alone and sys.stdout.isatty() and not last.endswith(b"\n"):
            print_bytes(b"\n")
        return
    with _bar(output.name, reader.size_bytes) as show:
        await write_file(_shown(reader, show), output)
    if settings.json:
        print_json(saved_json(reader.row, output))
    else:
        click.echo(f"{output}  {size(reader.size_bytes)}")


async def _shown(reader: ValueReader[Any], show: Show) -> AsyncIterator[bytes]:
    count_bytes = 0
    async for chunk in reader:
        yield chunk
        count_bytes += len(chunk)
        show(count_bytes)


class _ShownFile(io.BufferedReader):
    """A file that reports how much of it was read."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path))
        self.show: Show = _show_nothing
        self._count_bytes = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self._count_bytes += len(data)
        self.show(self._count_bytes)
        return data

    def seek(self, target: int, whence: int = os.SEEK_SET, /) -> int:
        self._count_bytes = super().seek(target, whence)
        return self._count_bytes


@contextmanager
def _bar(text: str, total_bytes: int | None) -> Iterator[Show]:
    if not sys.stderr.isatty():
        yield _show_nothing
        return
    # Imported here: most commands show no bar, and start sooner without it.
    from rich import progress

    from holdfast.cli.console import PipeConsole

    with progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=PipeConsole(stderr=True, markup=False, highlight=False),
        transient=True,
    ) as bars:
        bar = bars.add_task(text, total=total_bytes)
        yield lambda count_bytes: bars.update(bar, completed=count_bytes)


def _show_nothing(count_bytes: int) -> None:
    """Show nothing, without a terminal."""

"""How far the demo is: bars on a terminal, a line now and then elsewhere, or nothing. On stderr."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Final, Self

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

BARS: Final = ("written", "followed", "read back")
#: Without a terminal, each bar says so many lines at the most.
_PLAIN_STEPS: Final = 4


class DemoProgress:
    """A context manager. `show` moves a bar to a count; `say` prints a line."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._total = 0
        self._said: dict[str, int] = {}
        self._bars: dict[str, TaskID] = {}
        self._rich: Progress | None = None
        if enabled and sys.stderr.isatty():
            self._rich = Progress(
                TextColumn("{task.description:<10}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=Console(stderr=True, markup=False, highlight=False),
            )

    def __enter__(self) -> Self:
        if self._rich is not None:
            self._rich.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._rich is not None:
            self._rich.stop()

    def begin(self, total: int) -> None:
        """Say how many messages there are."""
        self._total = total
        if self._rich is not None:
            self._bars = {bar: self._rich.add_task(bar, total=total) for bar in BARS}

    def stage(self, text: str) -> None:
        """Say what happens now."""
        if self._enabled:
            self.say(text)

    def say(self, line: str) -> None:
        """Print a line, above the bars if there are any."""
        if self._rich is not None:
            self._rich.console.print(line)
        else:
            click.echo(line, err=True)

    def show(self, bar: str, count: int) -> None:
        """Move `bar` to `count`."""
        if self._rich is not None:
            self._rich.update(self._bars[bar], completed=count)
        elif self._enabled and self._total:
            step = count * _PLAIN_STEPS // self._total
            if step > self._said.get(bar, 0):
                self._said[bar] = step
                click.echo(f"{bar} {count:,} of {self._total:,}", err=True)

"""The progress of the demo, on stderr: bars on a terminal, otherwise a few lines, or nothing."""

from __future__ import annotations

from typing import Final

import click
from rich.progress import TaskID

from holdfast.cli.progress import CountingProgress

BARS: Final = ("written", "followed", "read back")
#: Without a terminal, each bar prints at most this many lines.
_PLAIN_STEPS: Final = 4


class DemoProgress(CountingProgress):
    """`show` moves a bar to a count; `say` prints a line."""

    def __init__(self, *, enabled: bool) -> None:
        super().__init__(enabled=enabled, text="{task.description:<10}")
        self._enabled = enabled
        self._total = 0
        self._said: dict[str, int] = {}
        self._tasks: dict[str, TaskID] = {}

    def begin(self, total: int) -> None:
        """Set the number of messages, and start the bars."""
        self._total = total
        if self.bars is not None:
            self._tasks = {bar: self.bars.add_task(bar, total=total) for bar in BARS}

    def stage(self, text: str) -> None:
        """Print what happens now, if progress is shown."""
        if self._enabled:
            self.say(text)

    def say(self, line: str) -> None:
        """Print a line, above the bars if there are any."""
        if self.bars is not None:
            self.bars.console.print(line)
        else:
            click.echo(line, err=True)

    def show(self, bar: str, count: int) -> None:
        """Move `bar` to `count`."""
        if self.bars is not None:
            self.bars.update(self._tasks[bar], completed=count)
        elif self._enabled and self._total:
            step = count * _PLAIN_STEPS // self._total
            if step > self._said.get(bar, 0):
                self._said[bar] = step
                click.echo(f"{bar} {count:,} of {self._total:,}", err=True)

"""Progress bars that count, on stderr if that is a terminal.

Without a terminal there are no bars, and a subclass prints lines or nothing. `file_values.py` has
the bars for bytes.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from holdfast.cli.console import PipeConsole


class CountingProgress:
    """`bars` is there while the body runs; None without a terminal, or if not `enabled`."""

    def __init__(self, *, enabled: bool, text: str = "{task.description}") -> None:
        self.bars: Progress | None = None
        if enabled and sys.stderr.isatty():
            self.bars = Progress(
                TextColumn(text),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=PipeConsole(stderr=True, markup=False, highlight=False),
            )

    def __enter__(self) -> Self:
        if self.bars is not None:
            self.bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.bars is not None:
            self.bars.stop()

"""The console on which rich draws tables and progress bars."""

from __future__ import annotations

from typing import NoReturn

from rich.console import Console


class PipeConsole(Console):
    """A console that raises BrokenPipeError if the reader of a pipe has left (`| head`). Rich's own
    ends the process with 1, and sends stdout to nowhere even if the pipe was stderr."""

    def on_broken_pipe(self) -> NoReturn:
        """Let the error that called this pass."""
        raise  # noqa: PLE0704 (rich calls it while it handles the BrokenPipeError)

"""The options of all commands that run one part of a cluster in the foreground."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click


class ProcessOptions(NamedTuple):
    """What an operator chose of a process, apart from what it serves."""

    alive_file: Path | None
    monitor: str | None
    log_format: str
    log_level: str

    @property
    def arguments(self) -> list[str]:
        """The same as arguments of the process."""
        arguments = ["--log-level", self.log_level, "--log-format", self.log_format]
        if self.alive_file is not None:
            arguments += ["--alive-file", str(self.alive_file)]
        if self.monitor is not None:
            arguments += ["--monitor", self.monitor]
        return arguments


def process_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add these options to a command, which gets them as `process`."""

    @click.option(
        "--alive-file",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Touch this file every few seconds while the event loop runs, for a supervisor.",
    )
    @click.option(
        "--monitor",
        metavar="HOST:PORT",
        help="Answer /healthz, /readyz and /metrics there; port 0 picks a free one.",
    )
    @click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="json: one object for each line.",
    )
    @click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        show_default=True,
        help="Log events of this level and above, to stderr.",
    )
    @functools.wraps(command)
    def with_process(
        *arguments: Any,
        alive_file: Path | None,
        monitor: str | None,
        log_format: str,
        log_level: str,
        **options: Any,
    ) -> None:
        process = ProcessOptions(alive_file, monitor, log_format, log_level)
        command(*arguments, process=process, **options)

    return with_process

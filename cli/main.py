"""The entry of the `holdfast` command, the only module of it that needs neither click nor rich."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import NoReturn

from holdfast.protocol.distribution import how_to_install


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command line and exit: the one of this process unless `arguments` are given."""
    try:
        import click  # noqa: F401
        import rich  # noqa: F401
    except ModuleNotFoundError as error:
        sys.exit(f"holdfast: the command line needs {error.name}. Try: {how_to_install('cli')}")
    from holdfast.cli.command import holdfast

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            # A locale without Unicode shows other characters by their codes, and nothing fails.
            stream.reconfigure(errors="backslashreplace")
    holdfast(arguments, prog_name="holdfast")
    sys.exit(0)

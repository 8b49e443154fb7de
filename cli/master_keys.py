"""The options that name master keys, for servers and for the commands that use one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click


class MasterKeyOptions(NamedTuple):
    """Where master keys are. The keys themselves are never arguments."""

    files: tuple[Path, ...] = ()
    commands: tuple[str, ...] = ()

    @property
    def arguments(self) -> list[str]:
        """The same as arguments of a server."""
        arguments = [part for file in self.files for part in ("--master-key-file", str(file))]
        for command in self.commands:
            arguments += ["--master-key-command", command]
        return arguments


def master_key_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add these options to a command, which gets them as `master_keys`."""

    @click.option(
        "--master-key-file",
        type=click.Path(dir_okay=False, path_type=Path),
        multiple=True,
        help="A file with a master key of 32 bytes, for encrypted tenants. Repeatable.",
    )
    @click.option(
        "--master-key-command",
        metavar="COMMAND",
        multiple=True,
        help="A command that prints a master key; it runs without a shell. Repeatable.",
    )
    @functools.wraps(command)
    def with_keys(
        *arguments: Any,
        master_key_file: tuple[Path, ...],
        master_key_command: tuple[str, ...],
        **options: Any,
    ) -> None:
        files = tuple(each.absolute() for each in master_key_file)
        command(*arguments, master_keys=MasterKeyOptions(files, master_key_command), **options)

    return with_keys

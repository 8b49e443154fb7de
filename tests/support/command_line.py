"""What a deployment's file says on the command line of holdfast, parsed by that command line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from unittest import mock

import click

from holdfast.cli.command import holdfast


def parsed(arguments: Sequence[str], environment: Mapping[str, str]) -> dict[str, object]:
    """Return the options of a command, of `arguments` and `environment` alone. Raises
    click.UsageError for whatever the command would refuse."""
    with mock.patch.dict(os.environ, environment, clear=True):
        parent = click.Context(holdfast, info_name="holdfast", auto_envvar_prefix="HOLDFAST")
        name, *rest = arguments
        command = holdfast.get_command(parent, name)
        if command is None:
            raise click.UsageError(f"no command {name!r}")
        context = command.make_context(name, rest, parent=parent)
    assert not context.args, f"left over: {context.args}"
    return context.params


def variables() -> set[str]:
    """Return every variable that the command line reads."""
    found = {str(one.envvar) for one in holdfast.params if isinstance(one, click.Option)}
    parent = click.Context(holdfast)
    for name in ("coordinator", "persist"):
        command = holdfast.get_command(parent, name)
        assert command is not None
        found |= {
            f"HOLDFAST_{name.upper()}_{one.name.upper()}" for one in command.params if one.name
        }
    return found

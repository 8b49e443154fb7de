"""The `holdfast` command: its groups, its shared options, and what becomes of errors.

Data goes to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage, 130
Ctrl-C. No traceback reaches the user for an error of holdfast's tree or of the operating system;
anything else is a bug, and shows one.

A command's module is imported when the command is called: a lone `holdfast kv get` does without what the
demo, the benchmarks and the doctor need, and so does each server that is started again.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from importlib import import_module
from typing import Any, Final

import click

from holdfast.cli.advice import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    advice_for,
    exit_code_of,
    explain,
    first_error,
)
from holdfast.cli.settings import CLIENT_OPTIONS, Settings, shared_options
from holdfast.protocol.distribution import version
from holdfast.protocol.errors import HoldfastError

#: Each command, with the module under `holdfast.cli` and the name there.
_COMMANDS: Final = {
    "backup": ("backup", "backup"),
    "backups": ("backup", "backups"),
    "bench": ("bench", "bench"),
    "collect": ("collect", "collect"),
    "coordinator": ("parts", "coordinator"),
    "delete": ("backup", "delete"),
    "demo": ("demo", "demo"),
    "doctor": ("doctor", "doctor"),
    "drain": ("drain", "drain"),
    "export": ("tables", "export_command"),
    "import": ("tables", "import_command"),
    "kv": ("kv", "kv"),
    "persist": ("parts", "persist"),
    "rebuild": ("rebuild", "rebuild"),
    "restore": ("backup", "restore"),
    "servers": ("servers", "servers"),
    "stores": ("servers", "stores"),
    "stream": ("stream", "stream"),
    "tenants": ("servers", "tenants"),
    "undrain": ("drain", "undrain"),
    "up": ("up", "up"),
    "verify": ("verify", "verify"),
}


class _RootGroup(click.Group):
    """Imports its commands when they are asked for; turns errors into one line on stderr and an exit
    code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*_COMMANDS, *self.commands})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _COMMANDS and cmd_name not in self.commands:
            module, name = _COMMANDS[cmd_name]
            self.add_command(getattr(import_module(f"holdfast.cli.{module}"), name))
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        for library in ("holdfast", "nats"):
            # What a command logs is for those who set logging up, as the servers do: others are
            # told in the one line at the end, and do not need it twice.
            logging.getLogger(library).addHandler(logging.NullHandler())
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BaseExceptionGroup as group:
            return self._end(ctx, first_error(group))
        except (HoldfastError, OSError, KeyboardInterrupt) as error:
            return self._end(ctx, error)
        except click.Abort:
            click.echo("\nError: nothing was confirmed. Try: --yes", err=True)
            ctx.exit(EXIT_FAILED)

    def _end(self, ctx: click.Context, error: BaseException) -> Any:
        if isinstance(error, KeyboardInterrupt):
            ctx.exit(EXIT_INTERRUPTED)
        if isinstance(error, BrokenPipeError):
            _discard_stdout()
            ctx.exit(0)
        if not isinstance(error, (HoldfastError, OSError)):
            raise error
        if ctx.ensure_object(Settings).json:
            code = error.code if isinstance(error, HoldfastError) else "os_error"
            report = {"error": code, "message": str(error), "try": advice_for(error)}
            click.echo(json.dumps(report), err=True)
        else:
            click.echo(f"Error: {explain(error)}", err=True)
        ctx.exit(exit_code_of(error))


def _discard_stdout() -> None:
    """Let what is still buffered go nowhere: the reader of the pipe has left (`| head`)."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _show_version(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        click.echo(f"holdfast {version()}")
        context.exit()


@click.group(
    cls=_RootGroup,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": "HOLDFAST",
        "max_content_width": 100,
    },
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    allow_from_autoenv=False,
    help="Show the version and exit.",
)
@shared_options(*CLIENT_OPTIONS, from_environment=True)
def holdfast() -> None:
    """Streams and key-value stores over NATS.

    Start with `holdfast up`, then in another terminal `holdfast stream append notes "hello"` and
    `holdfast stream read notes`.
    """

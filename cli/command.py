"""The `holdfast` command: its groups, its shared options, and what becomes of errors.

Data goes to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage, 130
Ctrl-C. No traceback reaches the user for an error of holdfast's tree or of the operating system;
anything else is a bug, and shows one.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from importlib import metadata
from typing import Any

import click

from holdfast.cli.advice import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    advice_for,
    exit_code_of,
    explain,
    first_error,
)
from holdfast.cli.backup import backup, backups, delete, restore
from holdfast.cli.bench import bench
from holdfast.cli.collect import collect
from holdfast.cli.demo import demo
from holdfast.cli.doctor import doctor
from holdfast.cli.drain import drain, undrain
from holdfast.cli.kv import kv
from holdfast.cli.parts import coordinator, persist
from holdfast.cli.rebuild import rebuild
from holdfast.cli.servers import servers, stores
from holdfast.cli.settings import CLIENT_OPTIONS, Settings, shared_options
from holdfast.cli.stream import stream
from holdfast.cli.tables import export_command, import_command
from holdfast.cli.up import up
from holdfast.cli.verify import verify
from holdfast.protocol.errors import HoldfastError


class _RootGroup(click.Group):
    """Turns errors into one line on stderr and an exit code."""

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


@click.group(
    cls=_RootGroup,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": "HOLDFAST",
        "max_content_width": 100,
    },
)
@click.version_option(
    metadata.version("holdfast"), prog_name="holdfast", message="%(prog)s %(version)s"
)
@shared_options(*CLIENT_OPTIONS, from_environment=True)
def holdfast() -> None:
    """Streams and key-value stores over NATS.

    Start with `holdfast up`, then in another terminal `holdfast stream append notes "hello"` and
    `holdfast stream read notes`.
    """


for _command in (
    up,
    demo,
    stream,
    kv,
    servers,
    stores,
    drain,
    undrain,
    backup,
    backups,
    restore,
    delete,
    verify,
    collect,
    rebuild,
    doctor,
    bench,
    export_command,
    import_command,
    coordinator,
    persist,
):
    holdfast.add_command(_command)

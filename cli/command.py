"""The `holdfast` command: its groups, its shared options, and how it reports errors.

Data goes to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage, 130
interrupted by Ctrl-C. Commands that run until they are stopped (`up`, `coordinator`, `persist`)
end with 0 when Ctrl-C or SIGTERM stops them. No traceback reaches the user for an error of
holdfast's tree or of the operating system; anything else is a bug, and shows one.

The module of a command is imported when the command is called. So neither `holdfast kv get` nor a
restarted server imports what the demo, the benchmarks and the doctor need.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Final

import click

from holdfast.cli.advice import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
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
    "audit": ("access.audit", "audit"),
    "auth": ("access.auth", "auth"),
    "backup": ("commands.backup", "backup"),
    "backups": ("commands.backup", "backups"),
    "bench": ("commands.bench", "bench"),
    "collect": ("commands.collect", "collect"),
    "coordinator": ("commands.parts", "coordinator"),
    "cost": ("watching.cost", "cost"),
    "delete": ("commands.backup", "delete"),
    "demo": ("commands.demo", "demo"),
    "doctor": ("commands.doctor", "doctor"),
    "drain": ("commands.drain", "drain"),
    "export": ("commands.tables", "export_command"),
    "fork": ("forks.fork", "fork"),
    "gateway": ("gateway.gateway", "gateway"),
    "import": ("commands.tables", "import_command"),
    "issuer": ("access.issuer", "issuer"),
    "kv": ("commands.kv", "kv"),
    "move": ("balancing.move", "move"),
    "nats-config": ("access.nats_config", "nats_config"),
    "migrate": ("migrating.migrate", "migrate"),
    "persist": ("commands.parts", "persist"),
    "probe": ("commands.probe", "probe"),
    "purge": ("commands.purge", "purge"),
    "rebalance": ("balancing.rebalance", "rebalance"),
    "rebuild": ("commands.rebuild", "rebuild"),
    "report": ("watching.report", "report"),
    "restore": ("commands.backup", "restore"),
    "servers": ("watching.servers", "servers"),
    "stores": ("stores.stores", "stores"),
    "stream": ("commands.stream", "stream"),
    "tenant": ("tenants.tenant", "tenant"),
    "tenants": ("tenants.listing", "tenants"),
    "token": ("access.token", "token"),
    "top": ("watching.top", "top"),
    "undrain": ("commands.drain", "undrain"),
    "up": ("commands.up", "up"),
    "verify": ("commands.verify", "verify"),
}


#: Where a context keeps whether the command line has `--json` anywhere, even after a wrong option.
_WANTS_JSON: Final = "holdfast.wants_json"


class _UsageObject(click.ClickException):
    """A usage error for programs: an object on stderr."""

    exit_code = EXIT_USAGE

    def __init__(self, error: click.UsageError) -> None:
        # A call without arguments that shows the help has no message but the help.
        is_help = isinstance(error, click.exceptions.NoArgsIsHelpError)
        super().__init__("a command is missing" if is_help else error.format_message())
        self._path = error.ctx.command_path if error.ctx is not None else "holdfast"

    def show(self, file: Any = None) -> None:
        _print_error("usage", self.message, f"{self._path} --help")


def _wants_json(arguments: Sequence[str]) -> bool:
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in own or os.environ.get("HOLDFAST_JSON", "").lower() in (
        "1",
        "true",
        "yes",
        "on",
        "t",
        "y",
    )


def _print_error(code: str, message: str, advice: str) -> None:
    click.echo(json.dumps({"error": code, "message": message, "try": advice}), err=True)


class _RootGroup(click.Group):
    """Imports a command when it is called, and turns errors into one line on stderr and an
    exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*_COMMANDS, *self.commands})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _COMMANDS and cmd_name not in self.commands:
            module, name = _COMMANDS[cmd_name]
            self.add_command(getattr(import_module(f"holdfast.cli.{module}"), name))
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = get_close_matches(args[0], self.list_commands(ctx), cutoff=0.7)
            if not near:
                raise
            guess = " or ".join(map(repr, near))
            raise click.UsageError(f"{error.message} Did you mean {guess}?", ctx) from error

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        wanted = _wants_json(args)
        try:
            context = super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            raise (_UsageObject(error) if wanted else error) from error
        context.meta[_WANTS_JSON] = wanted
        return context

    def invoke(self, ctx: click.Context) -> Any:
        for library in ("holdfast", "nats"):
            # Only servers set up logging. Any other command would tell an error twice: in a log
            # event and in its last line.
            logging.getLogger(library).addHandler(logging.NullHandler())
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BaseExceptionGroup as group:
            return self._end(ctx, first_error(group))
        except (HoldfastError, OSError, KeyboardInterrupt) as error:
            return self._end(ctx, error)
        except click.UsageError as error:
            wanted = ctx.meta.get(_WANTS_JSON) or ctx.ensure_object(Settings).json
            raise (_UsageObject(error) if wanted else error) from error
        except click.Abort:
            if ctx.ensure_object(Settings).json:
                # The question is still on this line.
                click.echo(err=True)
                _print_error("not_confirmed", "nothing was confirmed", "--yes")
            else:
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
            # Some errors bring advice of their own.
            message, _, advice = str(error).partition(". Try: ")
            _print_error(code, message, advice or advice_for(error))
        else:
            click.echo(f"Error: {explain(error)}", err=True)
        ctx.exit(exit_code_of(error))


def _discard_stdout() -> None:
    """Discard buffered output, because the reader of the pipe has left (`| head`)."""
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

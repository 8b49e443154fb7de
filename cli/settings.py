"""The options that all commands share: where the cluster is, as whom, how long, in which form.

You can give them before the command (`holdfast --json servers`) or after it (`holdfast servers
--json`); the later one counts. The environment sets those before the command: HOLDFAST_NATS,
HOLDFAST_TENANT, HOLDFAST_PREFIX, HOLDFAST_TIMEOUT, HOLDFAST_JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from holdfast.protocol.limits import CONTROL_TIMEOUT_SECONDS, OPERATION_TIMEOUT_SECONDS
from holdfast.protocol.subjects import DEFAULT_NATS, DEFAULT_PREFIX

if TYPE_CHECKING:
    from holdfast.client.connection import Connecting

DEFAULT_TENANT: Final = "default"

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(slots=True)
class Settings:
    """The values of the shared options, filled in while click reads the command line."""

    #: None if not given.
    nats: str | None = None
    tenant: str = DEFAULT_TENANT
    prefix: str = DEFAULT_PREFIX
    timeout: float = OPERATION_TIMEOUT_SECONDS
    json: bool = False
    #: Whether `nats` comes from HOLDFAST_NATS.
    nats_from_environment: bool = field(default=False, compare=False)

    @property
    def nats_url(self) -> str:
        return self.nats or DEFAULT_NATS

    @property
    def asking_seconds(self) -> float:
        """How long to look for a coordinator before the command reports that there is none."""
        return min(self.timeout, CONTROL_TIMEOUT_SECONDS)

    def connect(self) -> Connecting:
        """Return a client; enter it with `async with`."""
        # Imported here, because the commands of servers need no client.
        from holdfast.client.connection import connect

        return connect(
            self.nats_url,
            tenant=self.tenant,
            prefix=self.prefix,
            timeout_seconds=self.timeout,
            name="holdfast-cli",
        )


pass_settings = click.make_pass_decorator(Settings, ensure=True)

_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "nats": {
        "metavar": "URL",
        "help": f"NATS servers, joined by commas.  [default: {DEFAULT_NATS}]",
    },
    "tenant": {
        "metavar": "NAME",
        "help": f"The tenant whose stores you use.  [default: {DEFAULT_TENANT}]",
    },
    "prefix": {
        "metavar": "TOKEN",
        "help": f"The first token of all subjects.  [default: {DEFAULT_PREFIX}]",
    },
    "timeout": {
        "type": click.FloatRange(min=0, min_open=True),
        "metavar": "SECONDS",
        "help": f"How long one operation may take.  [default: {OPERATION_TIMEOUT_SECONDS:g}]",
    },
    "json": {
        "is_flag": True,
        "default": None,
        "help": "Print JSON; docs/cli.md describes the shapes.",
    },
}
#: The options of a command that talks to a running cluster.
CLIENT_OPTIONS: Final = ("nats", "tenant", "prefix", "timeout", "json")


def shared_options(*names: str, from_environment: bool = False) -> Callable[[_Command], _Command]:
    """Give a command the shared options `names`, whose values go into its Settings."""

    def remember(context: click.Context, parameter: click.Parameter, value: object) -> None:
        settings = context.ensure_object(Settings)
        if value is not None:
            assert parameter.name is not None
            setattr(settings, parameter.name, value)
            if parameter.name == "nats":
                source = context.get_parameter_source("nats")
                settings.nats_from_environment = source is ParameterSource.ENVIRONMENT

    def decorate(command: _Command) -> _Command:
        for name in reversed(names):
            command = click.option(
                f"--{name}",
                expose_value=False,
                callback=remember,
                envvar=f"HOLDFAST_{name.upper()}" if from_environment else None,
                allow_from_autoenv=False,
                **_OPTIONS[name],
            )(command)
        return command

    return decorate


def client_command(command: _Command) -> _Command:
    """Give a command all shared options, and its Settings as the first argument."""
    return shared_options(*CLIENT_OPTIONS)(pass_settings(command))  # type: ignore[return-value]

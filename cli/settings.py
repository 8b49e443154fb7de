"""The options that all commands share: where the cluster is, as whom, how long, in which form.

You can give them before the command (`holdfast --json servers`) or after it (`holdfast servers
--json`); the later one counts. The environment sets those before the command: HOLDFAST_NATS,
HOLDFAST_NATS_CREDS, HOLDFAST_TENANT and so on. A password is taken from there alone, because every
user of a machine can read command lines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from holdfast.cli.quantities import NumberRange
from holdfast.protocol.access.own_token import OwnToken, own_token
from holdfast.protocol.bus.login import LOGIN_OPTIONS, NatsLogin, variable
from holdfast.protocol.bus.nats_url import parse_url, url_of_arguments
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.limits import CONTROL_TIMEOUT_SECONDS, OPERATION_TIMEOUT_SECONDS
from holdfast.protocol.subjects import (
    DEFAULT_INBOXES,
    DEFAULT_NATS,
    DEFAULT_PREFIX,
    Inboxes,
    Subjects,
)

if TYPE_CHECKING:
    from holdfast.client.connecting import Connecting
    from holdfast.protocol.bus.bus import Bus

DEFAULT_TENANT: Final = "default"

_CONNECTION_NAME: Final = "holdfast-cli"

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(slots=True)
class Settings:
    """The values of the shared options, filled in while click reads the command line."""

    #: None if not given. It may contain a password.
    nats: str | None = field(default=None, repr=False)
    nats_creds: str | None = None
    nats_nkey: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    #: None if not given.
    inbox_prefix: str | None = None
    #: The file with the token, if one is given here. HOLDFAST_TOKEN and HOLDFAST_TOKEN_FILE count
    #: otherwise.
    token_file: str | None = None
    tenant: str = DEFAULT_TENANT
    prefix: str = DEFAULT_PREFIX
    timeout: float = OPERATION_TIMEOUT_SECONDS
    json: bool = False
    #: Whether `nats` comes from HOLDFAST_NATS.
    nats_from_environment: bool = field(default=False, compare=False)
    #: Whether `tenant` is given, be it the default one.
    tenant_given: bool = field(default=False, compare=False)

    @property
    def nats_url(self) -> str:
        return self.nats or DEFAULT_NATS

    @property
    def login(self) -> NatsLogin:
        """How commands log in to NATS. Raises InvalidArgumentError."""
        names = [option.replace("-", "_") for option in LOGIN_OPTIONS]
        return NatsLogin.from_options({name: getattr(self, name) for name in names})

    @property
    def token(self) -> OwnToken | None:
        """The token of this user. Raises InvalidArgumentError, InvalidTokenError."""
        return own_token(None if self.token_file is None else Path(self.token_file))

    @property
    def chosen_tenant(self) -> str | None:
        """The tenant, or None if none was chosen: then a token decides."""
        return self.tenant if self.tenant_given or self.tenant != DEFAULT_TENANT else None

    @property
    def subjects(self) -> Subjects:
        """The subjects of requests, with the id of the token. Raises as `token` does."""
        token = self.token
        return Subjects(self.prefix, "" if token is None else token.id)

    @property
    def asking_seconds(self) -> float:
        """How long to look for a coordinator before the command reports that there is none."""
        return min(self.timeout, CONTROL_TIMEOUT_SECONDS)

    def connect(self) -> Connecting:
        """Return a client; enter it with `async with`."""
        # Imported here, because the commands of servers need no client.
        from holdfast.client.connecting import connect

        return connect(
            self.nats_url,
            tenant=self.chosen_tenant,
            token=None if self.token_file is None else Path(self.token_file),
            prefix=self.prefix,
            timeout_seconds=self.timeout,
            name=_CONNECTION_NAME,
            inbox_prefix=self.inbox_prefix,
            **self.login.connect_arguments(),
        )

    async def connect_bus(self) -> Bus:
        """Connect as an operator, whose requests are no tenant's."""
        from holdfast.protocol.bus.bus_nats import connect_nats

        inboxes = Inboxes.parse(self.inbox_prefix, self.tenant, self.prefix)
        login, token = self.login, self.token
        if token is not None:
            inboxes = token.inboxes(inboxes)
            if parse_url(self.nats_url).user is None:
                login = replace(login, options={**login.options, **token.nats_options()})
        return await connect_nats(
            self.nats_url, name=_CONNECTION_NAME, login=login, inboxes=inboxes
        )


pass_settings = click.make_pass_decorator(Settings, ensure=True)

_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "nats": {
        "metavar": "URL",
        "help": f"NATS servers, joined by commas.  [default: {DEFAULT_NATS}]",
    },
    **{
        name: {
            "type": click.Path(dir_okay=False),
            "metavar": "FILE",
            "help": f"{text[0].upper()}{text[1:]}.",
        }
        for name, text in LOGIN_OPTIONS.items()
    },
    "inbox-prefix": {
        "metavar": "TOKENS",
        "help": f"The first tokens of the subjects for replies.  [default: {DEFAULT_INBOXES}]",
    },
    "token-file": {
        "type": click.Path(dir_okay=False),
        "metavar": "FILE",
        "help": "Your token; HOLDFAST_TOKEN may have its text instead.",
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
        "type": NumberRange(min=0, min_open=True),
        "metavar": "SECONDS",
        "help": f"How long one operation may take.  [default: {OPERATION_TIMEOUT_SECONDS:g}]",
    },
    "json": {
        "is_flag": True,
        "default": None,
        "help": "Print JSON; docs/cli.md describes the shapes.",
    },
}
#: The options that say where NATS is, and who this is.
NATS_OPTIONS: Final = ("nats", *LOGIN_OPTIONS, "inbox-prefix")
#: The options of a command that talks to a running cluster.
CLIENT_OPTIONS: Final = (*NATS_OPTIONS, "token-file", "tenant", "prefix", "timeout", "json")


def shared_options(*names: str, from_environment: bool = False) -> Callable[[_Command], _Command]:
    """Give a command the shared options `names`, whose values go into its Settings."""

    def remember(context: click.Context, parameter: click.Parameter, value: object) -> None:
        settings = context.ensure_object(Settings)
        if value is not None:
            assert parameter.name is not None
            setattr(settings, parameter.name, value)
            settings.tenant_given |= parameter.name == "tenant"
            if parameter.name == "nats":
                source = context.get_parameter_source("nats")
                settings.nats_from_environment = source is ParameterSource.ENVIRONMENT
                if not settings.nats_from_environment:
                    _check_readable_by_all(str(value), context, parameter)

    def decorate(command: _Command) -> _Command:
        for name in reversed(names):
            command = click.option(
                f"--{name}",
                expose_value=False,
                callback=remember,
                envvar=variable(name) if from_environment else None,
                allow_from_autoenv=False,
                **_OPTIONS[name],
            )(command)
        return command

    return decorate


def url_option(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    """Refuse a password that every user of the machine could read, and leave one of the environment
    to the process, which reads it there. The callback of an option with the URL of another NATS."""
    assert parameter.name is not None
    source = context.get_parameter_source(parameter.name)
    if value is None or source is ParameterSource.ENVIRONMENT:
        return None
    name = parameter.name.replace("_", "-")
    try:
        return url_of_arguments(value, f"--{name}", variable(name))
    except InvalidArgumentError as error:
        raise click.BadParameter(str(error.fields["reason"]), context, parameter) from error


def leafnodes_option(help_text: str) -> Callable[[_Command], _Command]:
    """Return the option that names the leafnode listeners of nats-server."""
    return click.option(
        "--leafnodes",
        metavar="URL",
        envvar=variable("leafnodes"),
        callback=url_option,
        help=f"{help_text}  [default: nats-leaf://127.0.0.1:7422]",
    )


def _check_readable_by_all(url: str, context: click.Context, parameter: click.Parameter) -> None:
    try:
        url_of_arguments(url)
    except InvalidArgumentError as error:
        raise click.BadParameter(str(error.fields["reason"]), context, parameter) from error


def client_command(command: _Command) -> _Command:
    """Give a command all shared options, and its Settings as the first argument."""
    return shared_options(*CLIENT_OPTIONS)(pass_settings(command))  # type: ignore[return-value]

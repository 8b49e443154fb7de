"""What the stand-in starts for given arguments of nats-server; pure.

The real nats-server gets the same configuration without JetStream, and with a leafnode listener.
holdfast works in the account that was to have JetStream: the global one, or the first that enables
it. There it gets a user of its own if anybody needs one.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

from tests.jetstream_conformance.standin.arguments import Arguments
from tests.jetstream_conformance.standin.nats_config import Map, parse

_USER: Final = "holdfast"
_PASSWORD: Final = "holdfast"
_DISABLED: Final = (None, False, "disabled", "disable")


class UnsupportedError(Exception):
    """A configuration that the stand-in cannot imitate."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start. `jetstream` are the settings that JetStream would have had: `domain`, and the
    limits of its account."""

    arguments: Arguments
    configuration: Map
    jetstream: Map
    #: The store directory that was asked for: servers that share it share their data. Empty if none
    #: was asked for.
    store: str
    port: int
    #: Before `@` in the URL of the cluster and the gateway; empty if nobody needs to log in.
    login: str
    leaf_login: str
    ports_file_dir: str

    def configuration_with(self, leaf_port: int, ports_file_dir: str) -> Map:
        """Return the configuration of the real server."""
        leafnodes = {**self.configuration.get("leafnodes", {}), "listen": f"127.0.0.1:{leaf_port}"}
        result = {**self.configuration, "leafnodes": leafnodes}
        if self.ports_file_dir:
            result["ports_file_dir"] = ports_file_dir
        return result


def plan_of(arguments: Arguments, read_file: Callable[[str], str]) -> Plan | None:
    """Return what to start; None if JetStream is not asked for.

    Raises ConfigurationError, UnsupportedError, and what `read_file` raises.
    """
    configuration = parse(read_file(arguments.config), read_file) if arguments.config else {}
    asked = configuration.pop("jetstream", None)
    accounts = configuration.get("accounts") or {}
    if asked in _DISABLED and not arguments.jetstream and not _enabled(accounts):
        return None
    if "operator" in configuration or "cluster" in configuration:
        raise UnsupportedError("the stand-in knows no operators and no clusters")
    settings: Map = dict(asked) if isinstance(asked, dict) else {}
    store = arguments.store_dir or str(settings.pop("store_dir", ""))
    login, leaf_login = "", ""
    if accounts:
        configuration = deepcopy(configuration)
        name, limits = _take_jetstream(configuration["accounts"])
        settings |= limits
        configuration["accounts"][name].setdefault("users", []).append(_user())
        _authorize_leaf(configuration, account=name)
        login = leaf_login = f"{_USER}:{_PASSWORD}@"
    elif "authorization" in configuration:
        configuration = deepcopy(configuration)
        login = _login_of(configuration["authorization"])
        _authorize_leaf(configuration)
        leaf_login = f"{_USER}:{_PASSWORD}@"
    return Plan(
        arguments=arguments,
        configuration=configuration,
        jetstream=settings,
        store=store,
        port=_port_of(arguments, configuration),
        login=login,
        leaf_login=leaf_login,
        ports_file_dir=arguments.ports_file_dir or str(configuration.get("ports_file_dir", "")),
    )


def _enabled(accounts: Map) -> list[str]:
    """Return the accounts that enable JetStream."""
    return [
        name
        for name, account in accounts.items()
        if isinstance(account, dict) and account.get("jetstream") not in _DISABLED
    ]


def _take_jetstream(accounts: Map) -> tuple[str, Map]:
    """Take JetStream from all accounts; return the first that had it, and its limits."""
    found = [(name, accounts[name].pop("jetstream")) for name in _enabled(accounts)]
    if len(found) != 1:
        raise UnsupportedError("a gateway serves one account, and JetStream must be enabled in it")
    name, value = found[0]
    return name, value if isinstance(value, dict) else {}


def _user() -> Map:
    return {"user": _USER, "password": _PASSWORD}


def _authorize_leaf(configuration: Map, **account: str) -> None:
    leafnodes = configuration.setdefault("leafnodes", {})
    leafnodes["authorization"] = {"users": [{**_user(), **account}]}


def _login_of(authorization: Map) -> str:
    """Return how to log in to the global account; a list of users gets one more."""
    if "users" in authorization:
        authorization["users"].append(_user())
        return f"{_USER}:{_PASSWORD}@"
    if "token" in authorization:
        return f"{authorization['token']}@"
    if "user" in authorization:
        return f"{authorization['user']}:{authorization['password']}@"
    return ""


def _port_of(arguments: Arguments, configuration: Map) -> int:
    """Return the port; below 1 for any that is free."""
    configured: Any = configuration.get("port")
    if arguments.config and configured is not None and arguments.port == 4222:
        return int(configured)
    return arguments.port

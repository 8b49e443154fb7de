"""A persist server that is the gateway as well, as `holdfast persist --jetstream` makes it; its
gateway may have the options of one that is a process of its own."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.gateway.jetstream.__main__ import work_of
from holdfast.persist import __main__ as persist

#: What stands between the arguments of the server and those of the gateway.
BETWEEN = "--"


def main(arguments: Sequence[str]) -> int:
    """Run it, and return the exit code. Raises what the two raise."""
    at = list(arguments).index(BETWEEN)
    of_server, of_gateway = arguments[:at], arguments[at + 1 :]
    name = of_server[of_server.index("--name") + 1]
    return persist.main(of_server, work_of(of_gateway, name))

"""The options of nats-server, as tests of clients give them.

nats-server takes Go's flags: one dash or two, the value behind `=` or as the next argument, and no
value for switches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

#: The names of an option that the stand-in has to know, by the one used here.
_KNOWN: Final = {
    "port": ("p", "port"),
    "http_port": ("m", "http_port"),
    "jetstream": ("js", "jetstream"),
    "store_dir": ("sd", "store_dir"),
    "config": ("c", "config"),
    "ports_file_dir": ("ports_file_dir",),
}
_BY_NAME: Final = {name: option for option, names in _KNOWN.items() for name in names}
#: All that take no value.
_SWITCHES: Final = frozenset(
    [
        *("js", "jetstream", "D", "debug", "V", "trace", "VV", "DV", "DVV", "T", "logtime"),
        *("s", "syslog", "tls", "tlsverify", "no_advertise", "t", "v", "version"),
        *("h", "help", "help_tls"),
    ]
)


@dataclass(frozen=True, slots=True)
class Arguments:
    """What nats-server was asked for; `others` is what the stand-in passes on."""

    port: int = 4222
    http_port: int = 0
    jetstream: bool = False
    store_dir: str = ""
    config: str = ""
    ports_file_dir: str = ""
    others: tuple[str, ...] = ()


def parse_arguments(arguments: Sequence[str]) -> Arguments:
    """Read the arguments of nats-server. Raises ValueError."""
    known: dict[str, str] = {}
    others: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        name, is_joined, value = argument.lstrip("-").partition("=")
        takes_value = name not in _SWITCHES and not is_joined
        if takes_value:
            if not rest:
                raise ValueError(f"{argument} needs a value")
            value = rest.pop(0)
        if name in _BY_NAME:
            known[_BY_NAME[name]] = value
        else:
            others += [argument, value] if takes_value else [argument]
    return Arguments(
        port=int(known.get("port", 4222)),
        http_port=int(known.get("http_port", 0)),
        jetstream="jetstream" in known and known["jetstream"] != "false",
        store_dir=known.get("store_dir", ""),
        config=known.get("config", ""),
        ports_file_dir=known.get("ports_file_dir", ""),
        others=tuple(others),
    )

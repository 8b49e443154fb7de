"""Roles of persist servers. Pure.

A server without the role `persist` is granted no store. A server with the role `tier` claims cold
work, which belongs to no open store (`cold_work.py`). The work on an open store belongs to its
owner by nature: its snapshots, its retention and its archiving need the file that the owner has. A
server with the role `archive` reads tables of archived messages for owners, in parts that it claims
(`persist/archive_reading/`); one with the role `cache` keeps blocks of snapshots for others
(`persist/block_cache/`): many may keep the same, and nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final

from holdfast.protocol.errors import InvalidArgumentError


class Role(StrEnum):
    """What a persist server may be there for."""

    #: Owns stores: serves, snapshots, closes and archives them.
    PERSIST = "persist"
    #: Does cold work.
    TIER = "tier"
    #: Reads archived messages for the owners of its zone that have not this role.
    ARCHIVE = "archive"
    #: Keeps blocks of snapshots in memory, for the servers of its zone.
    CACHE = "cache"


#: Each role at most once, in the order above.
Roles = tuple[Role, ...]
ALL_ROLES: Final[Roles] = tuple(Role)
#: Those of a server that tells none, as earlier versions do: it has what there was then.
EARLIER_ROLES: Final[Roles] = (Role.PERSIST, Role.TIER)
#: Those without which something is not done.
NEEDED_ROLES: Final[Roles] = (Role.PERSIST, Role.TIER)
#: The most roles that are read of one server, and the longest name of one.
_MAX_ROLES: Final = 64


def parse_roles(text: str) -> Roles:
    """Return the roles that an operator lists, as in `persist,tier`. Raises InvalidArgumentError,
    which lists the known ones."""
    roles = set()
    for word in text.split(","):
        try:
            roles.add(Role(word.strip()))
        except ValueError:
            known = ", ".join(Role)
            reason = f"{word.strip()!r} is no role; the roles are: {known}"
            raise InvalidArgumentError(argument="--roles", reason=reason) from None
    return tuple(role for role in Role if role in roles)


def roles_text(roles: Iterable[str]) -> str:
    """Return roles for people: `persist,tier`."""
    return ",".join(role for role in Role if role in set(roles))


def roles_shown(roles: Iterable[str]) -> str:
    """Return roles for a table: `all`, or as `roles_text`."""
    text = roles_text(roles)
    return "all" if text == roles_text(ALL_ROLES) else text


def roles_of_wire(value: Any) -> Roles:
    """Return the roles that a server tells: EARLIER_ROLES, if it tells none. Roles of later
    versions are left out. Raises InvalidArgumentError."""
    if value is None:
        return EARLIER_ROLES
    if (
        type(value) is not list
        or len(value) > _MAX_ROLES
        or any(type(role) is not str or len(role) > _MAX_ROLES for role in value)
    ):
        raise InvalidArgumentError(argument="roles", reason="it must be a list of roles")
    return tuple(role for role in Role if role in value)

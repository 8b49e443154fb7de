"""Roles of persist servers. Pure.

A server without the role `persist` is granted no store. A server with the role `tier` claims cold
work, which belongs to no open store (`cold_work.py`). The work on an open store belongs to its
owner by nature: its snapshots, its retention and its archiving need the file that the owner has.

There are no other roles, because nothing is behind them. A read of archived messages runs in the
owner, which alone knows what was deleted meanwhile; nothing caches for others.
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


#: Each role at most once, in the order above.
Roles = tuple[Role, ...]
ALL_ROLES: Final[Roles] = tuple(Role)
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


def roles_of_wire(value: Any) -> Roles:
    """Return the roles that a server tells: all, if it tells none, as earlier versions do. Roles of
    later versions are left out. Raises InvalidArgumentError."""
    if value is None:
        return ALL_ROLES
    if (
        type(value) is not list
        or len(value) > _MAX_ROLES
        or any(type(role) is not str or len(role) > _MAX_ROLES for role in value)
    ):
        raise InvalidArgumentError(argument="roles", reason="it must be a list of roles")
    return tuple(role for role in Role if role in value)

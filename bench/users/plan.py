"""What users do: who acts when, on which store, and what is written. Pure, except for reading
the traces.

Each user has a stream (the document), a kv (the cursor) and a follower on a stream that is shared
with others (a room). The user and the number of the action determine everything, so the result can
be checked without remembering what was sent.
"""

from __future__ import annotations

import gzip
import json
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple

from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.frames import pack

CURSOR_KEY: Final = "cursor"
#: One in this many actions of a user goes to the room, which has many followers, and some go to the
#: kv.
_ROOM_EVERY: Final = 100
_CURSOR_EVERY: Final = 10
_CURSOR_TURN: Final = 5
#: How many edits of all traces are in memory. Users begin at different places and start over at the
#: end.
MAX_EDITS: Final = 100_000
_EDIT_STRIDE: Final = 7919
_SENT_AT: Final = struct.Struct(">q")
_SYNTHETIC_SEED: Final = 42


class Deed(Enum):
    """The kind of an action."""

    TYPE = "type"
    MOVE_CURSOR = "move_cursor"
    SAY_IN_ROOM = "say_in_room"


class Action(NamedTuple):
    """One action of one user. `turn` counts that user's actions from 0."""

    user: int
    turn: int
    deed: Deed


@dataclass(frozen=True, slots=True)
class Crowd:
    """The users of one client process: every `clients`-th user, from `client` on."""

    users: int
    room_users: int
    client: int
    clients: int

    @property
    def members(self) -> range:
        return range(self.client, self.users, self.clients)

    @property
    def rooms(self) -> list[int]:
        """The rooms that the members are in."""
        return sorted({self.room_of(user) for user in self.members})

    def room_of(self, user: int) -> int:
        return user // self.room_users

    def action(self, number: int) -> Action:
        """Return the `number`-th action of this process. The members take turns."""
        members = self.members
        turn, place = divmod(number, len(members))
        user = members[place]
        return Action(user, turn, deed_of(user, turn))


def deed_of(user: int, turn: int) -> Deed:
    """Return what a user does in a turn. Users are out of step, so all deeds happen at any time."""
    number = user + turn
    if number % _ROOM_EVERY == 0:
        return Deed.SAY_IN_ROOM
    if number % _CURSOR_EVERY == _CURSOR_TURN:
        return Deed.MOVE_CURSOR
    return Deed.TYPE


def document_name(user: int) -> str:
    return f"users.{user}.document"


def cursor_name(user: int) -> str:
    return f"users.{user}.state"


def room_name(room: int) -> str:
    return f"rooms.{room}"


def edit_of(edits: Sequence[bytes], action: Action) -> bytes:
    """Return what a user writes in a turn."""
    return edits[(action.user * _EDIT_STRIDE + action.turn) % len(edits)]


def said(sent_at_ns: int, edit: bytes) -> bytes:
    """Return a message for a room: the monotonic time at which it was due, and an edit."""
    return _SENT_AT.pack(sent_at_ns) + edit


def said_at_ns(value: bytes) -> int:
    """Return when a message for a room was due."""
    return int(_SENT_AT.unpack_from(value)[0])


def read_edits(folder: Path | None) -> list[bytes]:
    """Return the edits of the traces in `folder`, packed, at most MAX_EDITS. Without a folder,
    return synthetic ones.

    A trace is `<name>.json.gz` with `txns: [{patches: [[position, deleted, inserted], ...]}, ...]`
    (github.com/josephg/editing-traces). Each gives its share, the smallest file first. Raises
    InvalidArgumentError for a folder without any.
    """
    if folder is None:
        return synthetic_edits(MAX_EDITS)
    paths = sorted(folder.glob("*.json.gz"), key=lambda path: path.stat().st_size)
    if not paths:
        raise InvalidArgumentError(argument="traces", reason=f"{folder} holds no *.json.gz")
    edits: list[bytes] = []
    for number, path in enumerate(paths):
        with gzip.open(path) as file:
            transactions: list[dict[str, Any]] = json.load(file)["txns"]
        share = (MAX_EDITS - len(edits)) // (len(paths) - number)
        # The first transaction creates the document and is as large as a file.
        edits += [pack(one["patches"]) for one in transactions[1 : share + 1]]
    return edits


def synthetic_edits(count: int) -> list[bytes]:
    """Return edits of realistic sizes: keystrokes, and one paste in a hundred."""
    chance = random.Random(_SYNTHETIC_SEED)
    edits = []
    for position in range(count):
        inserted = "x" if chance.random() < 0.99 else "pasted" * chance.randint(2, 50)
        edits.append(pack([[position % 60_000, int(chance.random() < 0.1), inserted]]))
    return edits

"""A volley: what one attack sends, made message by message from the draws of its seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import wraps
from typing import Any, Final, NamedTuple

from holdfast.protocol import frames
from tests.hostile.templates import STREAMS, World, numbered
from tests.support.raw_nats import publication

STREAM: Final = 1
KV: Final = 2


class Volley(NamedTuple):
    """What one attack sends, and how many operations that is: a message is at least one."""

    data: bytes
    operations: int
    #: Sent on a connection of its own, which is then dropped.
    apart: bool = False
    #: That connection reads nothing of what it asked for.
    deaf: bool = False


class Aim:
    """The draws of an attack, the world that it aims at, and what it has sent so far."""

    def __init__(self, rng: random.Random, world: World, inbox: bytes) -> None:
        self.rng = rng
        self.world = world
        #: The attacker's own.
        self.inbox = inbox
        self._sent: list[bytes] = []
        self._operation_count = 0

    def volley(self, *, apart: bool, deaf: bool) -> Volley:
        return Volley(b"".join(self._sent), self._operation_count, apart, deaf)

    def raw(self, data: bytes, operation_count: int = 1) -> None:
        """Send bytes that are no message, or several."""
        self._sent.append(data)
        self._operation_count += operation_count

    def send(
        self,
        subject: bytes,
        payload: bytes,
        operation_count: int = 1,
        *,
        reply: bytes | None = None,
        headers: bytes | None = None,
    ) -> None:
        """Send a message, to be answered to the attacker unless it says otherwise."""
        reply = self.reply() if reply is None else reply
        self.raw(publication(subject, payload, reply, headers), operation_count)

    def ask(self, verb: str, reply: bytes | None = None, **fields: object) -> None:
        """Send a control message to the coordinator."""
        self.send(self.coordinator(verb), frames.encode_control(**fields), reply=reply)

    def request(self, groups: list[Any], writer: bytes = b"", *, operation_count: int = 1) -> bytes:
        """Send a valid frame to the owner of its first store; return the message."""
        writer = writer or self.writer()
        owner = self.world.owner(groups[0][0], groups[0][1], self.rng)
        payload = frames.encode_request(writer, numbered(groups, writer, self.world))
        message = publication(self.server(owner), payload, self.reply())
        self.raw(message, operation_count)
        return message

    def operate(
        self, kind: int, name: str, operations: list[Any], operation_count: int = 0
    ) -> None:
        """Send operations on one store."""
        counter = 0 if operations[0][0] >= frames.FIRST_READ else 1
        group = [kind, name, counter, counter, 0, operations]
        self.request([group], operation_count=operation_count or len(operations))

    def server(self, name: str = "") -> bytes:
        """The subject of a server, any if none is named."""
        name = name or self.rng.choice(self.world.servers)
        return self.world.granted(f"hf.{self.world.tenant}.srv.{name}")

    def coordinator(self, verb: str) -> bytes:
        return self.world.granted(f"hf.{self.world.tenant}.coord.{verb}")

    def reply(self) -> bytes:
        return b"%s.%d" % (self.inbox, self.rng.randrange(1 << 30))

    def writer(self) -> bytes:
        """One of few, each of which numbers its groups as it should."""
        return b"hostile-%d" % self.rng.randrange(8)

    def stream(self) -> str:
        return self.rng.choice(STREAMS)


Attack = Callable[[random.Random, World, bytes], Volley]
"""From the draws, the world and an inbox of the attacker's."""

Attacks = dict[str, tuple[Attack, float]]
"""Attacks with their weights, by their names."""


def weighing(
    attacks: Attacks, weight: float, *, apart: bool = False, deaf: bool = False
) -> Callable[[Callable[[Aim], None]], Callable[[Aim], None]]:
    """Add what takes an aim to `attacks`."""

    def add(attack: Callable[[Aim], None]) -> Callable[[Aim], None]:
        @wraps(attack)
        def make(rng: random.Random, world: World, inbox: bytes) -> Volley:
            aim = Aim(rng, world, inbox)
            attack(aim)
            return aim.volley(apart=apart, deaf=deaf)

        attacks[attack.__name__] = (make, weight)
        return attack

    return add

"""A stranger: another tenant, which sends messages of any bytes to servers and coordinators.

What it sends is what the hostile tenant of `tests/hostile` sends, a part of it at a time, drawn
from the seed. Nothing of it may end a process, and nothing may be answered to where nobody has
asked."""

from __future__ import annotations

import random
from typing import Final

from holdfast.protocol import frames
from holdfast.protocol.bus.bus import NoRespondersError
from holdfast.protocol.errors import InvalidArgumentError, NotAllowedError, UnavailableError
from tests.hostile import attacks, floods
from tests.hostile.templates import KVS, STREAMS, World
from tests.hostile.volley import KV, STREAM, Aim
from tests.simulation.simulated_cluster import SERVERS, Simulation
from tests.simulation.simulated_nodes import TENANT
from tests.support.raw_nats import published

STRANGER: Final = "evil"
#: Those that are about what is sent and not about how much.
_ATTACKS: Final = (
    attacks.valid_operations,
    attacks.mutated_operations,
    attacks.mutated_operations,
    attacks.mutated_frames,
    attacks.mutated_control,
    attacks.forged_control,
    attacks.foreign_replies,
    floods.odd_counters,
    attacks.destroyed_stores,
    attacks.garbage,
)
_MESSAGES: Final = 10
#: A simulated run has thousands of messages: large ones are for real processes.
_MAX_BYTES: Final = 64 * 1024
_ASK_SECONDS: Final = 0.5


class Stranger:
    """One connection of the other tenant."""

    def __init__(self, simulation: Simulation) -> None:
        self._chance: random.Random = simulation.chance("stranger")
        self._world = World(STRANGER, TENANT, servers=list(SERVERS))
        self._bus = simulation.network.connect("x1")

    async def send(self) -> None:
        """Send a few messages."""
        chance = self._chance
        await self._learn()
        attack = chance.choice(_ATTACKS)
        aim = Aim(chance, self._world, b"_INBOX.evil.x")
        attack(aim)
        messages = list(published(aim.volley(apart=False, deaf=False).data))
        for message in chance.sample(messages, min(_MESSAGES, len(messages))):
            subject = message.subject.decode("latin-1")
            if not subject.startswith(f"hf.{STRANGER}.") or len(message.payload) > _MAX_BYTES:
                continue
            try:
                await self._bus.publish(subject, message.payload, message.reply.decode("latin-1"))
            except InvalidArgumentError:
                # No bus delivers these: `test_bus_contract.py`.
                continue

    async def _learn(self) -> None:
        """Ask who owns what, now and then."""
        if self._world.owners and self._chance.random() < 0.8:
            return
        names = [(STREAM, name) for name in STREAMS] + [(KV, name) for name in KVS]
        asked = frames.encode_control(stores=[list(name) for name in names])
        try:
            answer = await self._bus.request(
                f"hf.{STRANGER}.coord.resolve", asked, _ASK_SECONDS, STRANGER
            )
            owners = frames.decode_control(answer)["owners"]
        except (TimeoutError, NoRespondersError, NotAllowedError, UnavailableError):
            return
        self._world.owners = {
            name: owner[0] for name, owner in zip(names, owners, strict=True) if owner[0]
        }

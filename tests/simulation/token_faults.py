"""What goes wrong with tokens in a run: they expire, are revoked and renewed while writes are
unanswered, nobody can read the registry, and the clocks that decide what has expired jump.

Each fault heals by itself what it harms: a client whose token is worth nothing any more gets
another one after a while (`TokenOffice.keep`)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Final

from tests.simulation.simulated_nodes import ServerNode
from tests.simulation.token_office import Badge, TokenOffice

if TYPE_CHECKING:
    from tests.simulation.simulated_cluster import Simulation

#: Those who write.
_WRITERS: Final = ("k1", "k2", "k3", "k5")
#: As clients connect one after the other, some may not have begun.
_EVERYBODY: Final = (*_WRITERS, "k4")
_JUMP_MS: Final = 30_000


class TokenFaults:
    """Harms those who hold tokens, and the registry."""

    def __init__(self, simulation: Simulation, office: TokenOffice) -> None:
        self._simulation = simulation
        self._office = office
        self.chance = simulation.chance("faults of tokens")
        self.all: tuple[tuple[Callable[[], Awaitable[None]], int], ...] = (
            (self.revoke_token, 3),
            (self.revoke_while_unanswered, 3),
            (self.revoke_while_an_owner_dies, 3),
            (self.renew_while_unanswered, 3),
            (self.expire_token, 2),
            (self.registry_hangs, 1),
            (self.registry_fails, 1),
            (self.clocks_jump, 1),
        )
        if simulation.history.ack_wait_seconds:
            # What is judged of queues by the clocks of owners needs clocks that are nearly right.
            self.all = self.all[:-1]

    def _badge(self, clients: tuple[str, ...] = _WRITERS) -> Badge:
        badges = [badge for name, badge in self._office.badges.items() if name in clients]
        return self.chance.choice(badges)

    def _server(self) -> ServerNode:
        return self.chance.choice(self._simulation.servers)

    async def revoke_token(self) -> None:
        self._office.revoke(self._badge(_EVERYBODY))

    async def revoke_while_unanswered(self) -> None:
        """Let a client not hear the answers to what it writes, and revoke its token meanwhile."""
        badge, chance = self._badge(), self.chance
        await self._deafen(badge, chance.uniform(0.05, 1.0))
        self._office.revoke(badge)
        await self._deafen(badge, chance.choice((0.0, 0.5, 3.0)))

    async def revoke_while_an_owner_dies(self) -> None:
        """Revoke a token and kill a server, in any order, so that it counts in a takeover."""
        server, chance = self._server(), self.chance
        badge = self._badge()
        if chance.random() < 0.5:
            self._office.revoke(badge)
            await asyncio.sleep(chance.uniform(0.0, 6.0))
            server.kill()
        else:
            server.kill()
            await asyncio.sleep(chance.uniform(0.0, 1.5))
            self._office.revoke(badge)
        server.start_later(chance.choice((0.05, 0.5, 4.0)))

    async def renew_while_unanswered(self) -> None:
        """Give a client another token while it does not hear the answers to what it writes."""
        badge = self._badge()
        await self._deafen(badge, self.chance.uniform(0.05, 1.0))
        self._office.renew(badge, self.chance.choice((5, 20, None)))
        await self._office.reconnect(badge)

    async def expire_token(self) -> None:
        """Give a client a token that is about to expire."""
        badge = self._badge(_EVERYBODY)
        self._office.renew(badge, self.chance.choice((1, 2, 3)))
        await self._office.reconnect(badge)
        await asyncio.sleep(self.chance.uniform(1.0, 4.0))
        badge.lost.set()

    async def registry_hangs(self) -> None:
        """Let the folder of the registry hang for some, and revoke a token meanwhile."""
        weather, loop = self._office.weather, self._simulation.loop
        seconds = self.chance.uniform(2.0, 14.0)
        with self._harmed_registry() as hosts:
            for host in hosts:
                weather.hangs_until[host] = loop.time() + seconds
            await self._revoke_within(seconds)

    async def registry_fails(self) -> None:
        """Let reading the registry fail for some, and revoke a token meanwhile."""
        weather = self._office.weather
        with self._harmed_registry() as hosts:
            weather.failing |= hosts
            await self._revoke_within(self.chance.uniform(2.0, 14.0))
            weather.failing -= hosts

    async def clocks_jump(self) -> None:
        """Set clocks forth and back for a while: some find expired what others do not."""
        simulation, chance = self._simulation, self.chance
        nodes = [node for node in simulation.nodes if chance.random() < 0.6]
        jumps = [chance.randrange(-_JUMP_MS, _JUMP_MS) for _ in nodes]
        for node, jump_ms in zip(nodes, jumps, strict=True):
            node.leap_ms += jump_ms
            node.note_clock()
        await asyncio.sleep(chance.uniform(0.5, 5.0))
        for node, jump_ms in zip(nodes, jumps, strict=True):
            node.leap_ms -= jump_ms

    @contextlib.contextmanager
    def _harmed_registry(self) -> Iterator[set[str]]:
        """Yield the hosts for whom it is harmed: none while the survey of a coordinator goes on
        that began from an older state (`Nemesis._restore_state`)."""
        weather = self._office.weather
        names = [node.name for node in self._simulation.nodes]
        hosts = set(names) if self.chance.random() < 0.5 else {self.chance.choice(names)}
        weather.fault_count += 1
        yield set() if self._simulation.state_is_being_restored else hosts
        weather.fault_count -= 1

    async def _revoke_within(self, seconds: float) -> None:
        before = self.chance.uniform(0.0, 2.0)
        await asyncio.sleep(before)
        self._office.revoke(self._badge(_EVERYBODY), (1.0, 8.0, 8.0))
        await asyncio.sleep(seconds - before)

    async def _deafen(self, badge: Badge, seconds: float) -> None:
        simulation = self._simulation
        assert badge.node is not None
        name = badge.node.bus.name
        if seconds and name not in simulation.deaf:
            simulation.deaf[name] = simulation.loop.time()
            await asyncio.sleep(seconds)
            simulation.deaf.pop(name, None)

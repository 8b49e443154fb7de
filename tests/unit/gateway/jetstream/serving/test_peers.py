"""Whom a gateway takes for dead."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.gateway.jetstream.serving.live_gateways import DEAD_LOOKS, HEARTBEAT_SECONDS
from holdfast.gateway.jetstream.serving.peers import PeerListener, Peers
from holdfast.gateway.jetstream.serving.presence import GatewayPresence
from holdfast.gateway.jetstream.wire.memory import MemoryNats
from tests.simulation.virtual_loop import VirtualLoop

_LONG_SECONDS = 3 * DEAD_LOOKS * HEARTBEAT_SECONDS


class _Deaf(PeerListener):
    def gateways_changed(self, *_: Any) -> None: ...

    def asked_to_release(self, *_: Any) -> None: ...

    def offered(self, *_: Any) -> None: ...

    def released(self, *_: Any) -> None: ...

    def questioned(self, *_: Any) -> None: ...

    def passed_on(self, *_: Any) -> None: ...


def test_who_does_not_hear_itself_takes_nobody_for_dead() -> None:
    async def work() -> None:
        nats = MemoryNats()
        stalled: set[str] = set()
        nats.delay_seconds = lambda name: 100.0 if name in stalled else 0.001
        peers, tasks = [], []
        for name in ("a", "b"):
            client = nats.connect_client(name)
            presence = GatewayPresence(client, lambda stream: True)
            leaf = nats.connect_leaf(f"{name}-leaf")
            peers.append(Peers(client, leaf, "hf.t.js", name, presence, _Deaf()))
            await peers[-1].start()
            tasks.append(asyncio.create_task(peers[-1].run()))
        await asyncio.sleep(2 * HEARTBEAT_SECONDS)
        assert [each.live_gateways.live for each in peers] == [("a", "b")] * 2
        stalled.add("a")
        await asyncio.sleep(_LONG_SECONDS)
        # Nobody hears a, and a hears nobody.
        assert [each.live_gateways.live for each in peers] == [("a", "b"), ("b",)]
        for task in tasks:
            task.cancel()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work())

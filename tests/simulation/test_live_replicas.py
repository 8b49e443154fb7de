"""Live replicas in a cluster under faults: in the end all are alike, and nothing that was written
is lost or there twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from holdfast.client import LiveKV, LiveStream
from tests.simulation.nemesis import Nemesis
from tests.simulation.run import HEAL_SECONDS, RUN_SECONDS
from tests.simulation.simulated_cluster import Simulation
from tests.simulation.simulated_nodes import ClientNode
from tests.simulation.simulated_vfs import errors_may_go_unheard
from tests.simulation.virtual_loop import VirtualLoop

#: Which seeds with what patience; with little, most flights that a fault hits are looked for.
_RUNS = [(1, 300.0), (2, 0.3), (3, 0.3)]
_CLIENTS = 3
_KEYS = ("a", "b")


def union(base: bytes | None, local: bytes | None, remote: bytes | None) -> bytes:
    """The merge of sets of words."""
    old, mine, theirs = (set((each or b"").split()) for each in (base, local, remote))
    return b" ".join(sorted((theirs | (mine - old)) - (old - mine)))


class Typist:
    """One application's replicas, and what it wrote."""

    def __init__(
        self, name: str, words: LiveKV[bytes], notes: LiveStream[bytes], chance: random.Random
    ) -> None:
        self.name = name
        self.words = words
        self.notes = notes
        self.added: set[tuple[str, bytes]] = set()
        self.appended: list[bytes] = []
        self._chance = chance

    async def work(self, until: float) -> None:
        """Write now and then, whatever happens, and save in the end."""
        loop, chance = asyncio.get_running_loop(), self._chance
        while loop.time() < until:
            await asyncio.sleep(chance.expovariate(1 / chance.choice((0.02, 0.2))))
            value = f"{self.name}.{len(self.added)}.{len(self.appended)}".encode()
            if chance.random() < 0.5:
                self.notes.append(value)
                self.appended.append(value)
            else:
                key = chance.choice(_KEYS)
                words = self.words.get(key, b"").split()
                self.words[key] = b" ".join(sorted([*words, value]))
                self.added.add((key, value))
        await self.words.save(HEAL_SECONDS)
        await self.notes.save(HEAL_SECONDS)


async def open_typist(simulation: Simulation, number: int) -> Typist:
    """Start an application. Run it in its process."""
    node = simulation.clients[number]
    client = await node.start(timeout_seconds=30.0)
    words = await client.live_kv("words", merge=union).open()
    notes = await client.live_stream("notes").open()
    return Typist(node.name, words, notes, simulation.chance(f"typist {number}"))


async def run(seed: int) -> tuple[Simulation, Sequence[Typist]]:
    """Let typists write while everything fails, and wait until all of them see the same."""
    simulation = Simulation(seed)
    async with simulation:
        simulation.clients += [ClientNode(simulation, f"k{n}") for n in range(1, _CLIENTS + 1)]
        typists = [
            await node.run(open_typist(simulation, number))
            for number, node in enumerate(simulation.clients)
        ]
        work = [
            node.run(typist.work(RUN_SECONDS))
            for node, typist in zip(simulation.clients, typists, strict=True)
        ]
        await Nemesis(simulation).run(RUN_SECONDS)
        for node in simulation.nodes:
            node.start()
        await asyncio.gather(*work)
        async with asyncio.timeout(HEAL_SECONDS):
            while not all(
                dict(each.words) == dict(typists[0].words)
                and list(each.notes) == list(typists[0].notes)
                for each in typists
            ):
                await asyncio.sleep(0.5)
        late = ClientNode(simulation, f"k{_CLIENTS + 1}")
        simulation.clients.append(late)
        typists.append(await late.run(open_typist(simulation, _CLIENTS)))
    return simulation, typists


@pytest.mark.parametrize(("seed", "flight_seconds"), _RUNS)
def test_live_replicas_end_alike_with_all_that_was_written(
    seed: int, flight_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.client.live.live_kv.FLIGHT_SECONDS", flight_seconds)
    monkeypatch.setattr("holdfast.client.live.live_stream.FLIGHT_SECONDS", flight_seconds)
    with errors_may_go_unheard(), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        simulation, typists = runner.run(run(seed))
    assert not simulation.history.failures
    *writers, late = typists
    for typist in writers:
        assert typist.words.error is typist.notes.error is None
        assert dict(typist.words) == dict(late.words)
        assert list(typist.notes) == list(late.notes)
        own = [
            note.value for note in late.notes if note.value.startswith(f"{typist.name}.".encode())
        ]
        assert own == typist.appended
    assert [note.seq for note in late.notes] == list(range(1, len(late.notes) + 1))
    found = [(key, word) for key, value in late.words.items() for word in value.split()]
    assert sorted(found) == sorted(set.union(*(typist.added for typist in writers)))

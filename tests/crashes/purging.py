"""Purges that are crashed: whoever asks again erases all of it, and all that is raw is searched."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final

from holdfast.protocol.errors import NotFoundError
from tests.crashes.cluster import SERVERS
from tests.crashes.world import CHAT, NOTES, World
from tests.power.application import Violation
from tests.simulation.simulated_files import Directory, Inode
from tests.support.raw_search import holds

#: Random, so that nothing else has it.
SECRET: Final = bytes.fromhex("c4178e50d2ab396ff7016be85d42a39b7e118c06")
#: Sweeps until what is on its way has arrived, and what is late has gone.
_SWEEPS: Final = 60


async def sweep(world: World, epoch: int) -> None:
    """Sweep until a server finds nothing, and see that the raw bytes agree."""
    cluster = world.cluster
    if cluster.bucket_only:
        # Each has a disk of its own: `holdfast purge` says which it could not look at.
        cluster.start(*SERVERS)
    asked = [name for name in SERVERS if name in cluster.lives and not cluster.is_dead(name)]
    for _ in range(_SWEEPS):
        left = []
        for name in asked:
            report = await world.ask_owner(NOTES, "sweep", of=name, epoch=epoch)
            left += [row for row in report["remains"] if row["holds_values"]]
        if not left:
            break
        await world.pause()
    else:
        raise Violation(f"what was purged never goes: {left}")
    if found := list(places_with(world, SECRET)):
        raise Violation(f"the sweep has overlooked {found}")


def places_with(world: World, value: bytes) -> Iterator[str]:
    """Yield the files and objects that have a value, compressed parts unpacked."""
    root = world.cluster.files.find(Path("/"))
    assert isinstance(root, Directory)
    folders = [("", root)]
    while folders:
        above, folder = folders.pop()
        for name, node in folder.entries.items():
            path = f"{above}/{name}"
            if isinstance(node, Directory):
                folders.append((path, node))
            elif isinstance(node, Inode) and holds(bytes(node.content), value):
                yield path
    for listed in world.cluster.bucket.list():
        if holds(world.cluster.bucket.get(listed.key).body, value):
            yield listed.key


class PurgeStory:
    """A store with a secret in files, logs, a pack and a snapshot of its own."""

    place: ClassVar[dict[str, int]] = {}

    async def lead_up(self, world: World) -> None:
        for store in (NOTES, CHAT):
            await world.app.append(store, SECRET if store == NOTES else b"one")
        await world.until_cold()
        await world.app.append(NOTES, b"two")
        await world.until_cold()
        await world.append_stored(NOTES, b"three")
        # From here on its content is judged here: what writers did comes back no more.
        del world.app.sent[NOTES]
        world.values = [SECRET, b"two", b"three"]

    async def act(self, world: World) -> None:
        """What `holdfast purge` does."""
        told = await world.ask_owner(NOTES, "purge", **self.place)
        await world.ask_owner(NOTES, "sweep", epoch=told["epoch"])
        world.told = told


async def purge_again(world: World) -> None:
    """Purge the store, which may be gone by now."""
    with contextlib.suppress(NotFoundError):
        told = await world.ask_owner(NOTES, "purge")
        await sweep(world, told["epoch"])
    if found := await world.read_values(NOTES):
        raise Violation(f"a purged store holds {found}")
    await world.app.append(NOTES, b"anew")
    del world.app.sent[NOTES]
    world.values = [b"anew"]


async def purge_value_again(world: World) -> None:
    """Purge the first message, which may be gone by now."""
    found, rest = await world.read_values(NOTES), [b"two", b"three"]
    if found not in ([rest] if world.told else [rest, [SECRET, *rest]]):
        raise Violation(f"after a crash in a purge there is {found}")
    told = await world.ask_owner(NOTES, "purge", seq=1)
    await sweep(world, told["epoch"])
    model = await world.app.read(NOTES)
    if await world.read_values(NOTES) != rest or model.last_seq != 3:
        raise Violation(f"the purge has left {model}")
    world.values = rest

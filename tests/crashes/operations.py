"""What is crashed: each operation of the tiers, as a short story and what completes it.

`prepare` leads up to it; `act` is crashed at every point; `again` is what somebody does who does
not know how far it went, and judges what only this operation knows. The application's own promises,
the bucket and what is left behind are judged for all of them alike (`world.py`).
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from typing import ClassVar, Final

from holdfast.protocol.errors import InvalidArgumentError, NotFoundError
from holdfast.shared_fs.snapshots.collecting import Collector
from tests.crashes.cluster import IDLE_CLOSE_SECONDS
from tests.crashes.purging import PurgeStory, purge_again, purge_value_again
from tests.crashes.world import BYSTANDER, CHAT, NOTES, OTHER, World
from tests.power.application import Violation
from tests.power.cluster import COORDINATOR, ROOT
from tests.simulation.simulated_tiers import rebuild

_DAY_MS: Final = 86_400_000


class Operation(ABC):
    """One row of the table."""

    name: ClassVar[str]
    #: Without a shared file system.
    bucket_only: ClassVar[bool] = False
    #: What is reported on the way, and has to be.
    expected: ClassVar[str] = ""

    async def prepare(self, world: World) -> None:
        """Start the cluster, and lead up to the operation."""
        world.cluster.start(COORDINATOR, "s1")
        await world.app.append(BYSTANDER, b"one")
        await world.until_cold()

    @abstractmethod
    async def act(self, world: World) -> None:
        """Do it."""

    def repair(self, world: World) -> None:  # noqa: B027 (most need none)
        """What an operator does first, before anything is started again."""

    async def again(self, world: World) -> None:  # noqa: B027 (most need none)
        """Do it once more, or find that there is nothing left to do. Raises Violation."""


class GoCold(Operation):
    """Snapshot, publish, evict."""

    name = "go_cold"

    async def act(self, world: World) -> None:
        await world.app.append(NOTES, b"one", b"two")
        await world.until_cold()


class PackAndGoCold(Operation):
    """The same of several tiny stores together: a pack, several shards, one group of evictions."""

    name = "pack_and_go_cold"

    async def prepare(self, world: World) -> None:
        await super().prepare(world)
        for store in (NOTES, CHAT, OTHER):
            await world.app.append(store, b"one")

    async def act(self, world: World) -> None:
        await world.until_cold()


class ComeBack(Operation):
    """A cold store is read in memory, and written, which brings its file back."""

    name = "come_back"

    async def prepare(self, world: World) -> None:
        await super().prepare(world)
        await world.app.append(NOTES, b"one", b"two")
        await world.until_cold()

    async def act(self, world: World) -> None:
        await world.app.read(NOTES)
        await world.app.append(NOTES, b"three")


class Restore(Operation):
    """`holdfast restore --to-revision`, of a store that shares a pack with another."""

    name = "restore"

    async def prepare(self, world: World) -> None:
        await super().prepare(world)
        for store in (NOTES, CHAT):
            await world.app.append(store, b"one", b"two")
        await world.until_cold()
        await world.app.append(NOTES, b"three")
        # From here on its content is judged here: what writers did comes back no more.
        del world.app.sent[NOTES]
        world.values = [b"one", b"two", b"three"]

    async def act(self, world: World) -> None:
        world.told = await world.ask_owner(NOTES, "restore", revision=2)

    async def again(self, world: World) -> None:
        before, past = [b"one", b"two", b"three"], [b"one", b"two"]
        found = await world.read_values(NOTES)
        if found not in ([past] if world.told else [before, past]):
            raise Violation(f"after a crash in a restore there is {found}")
        told = await world.ask_owner(NOTES, "restore", revision=2)
        model = await world.app.read(NOTES)
        if await world.read_values(NOTES) != past or model.last_seq < 3:
            raise Violation(f"restored is {model}")
        if model.revision != told["new_revision"] or model.revision <= 3:
            raise Violation(f"a revision was used again: {model}")
        # A restore can be undone by another one.
        await world.ask_owner(NOTES, "restore", revision=3)
        if await world.read_values(NOTES) != before:
            raise Violation("what was before the restore is gone")
        world.values = before


class RestoreAs(Operation):
    """`holdfast restore --as`, into a store that is none yet."""

    name = "restore_as"

    async def prepare(self, world: World) -> None:
        await super().prepare(world)
        await world.app.append(NOTES, b"one", b"two")
        await world.until_cold()
        await world.app.append(NOTES, b"three")

    async def act(self, world: World) -> None:
        world.told = await world.ask_owner(OTHER, "restore", source=list(NOTES), revision=2)

    async def again(self, world: World) -> None:
        if world.told is None:
            # It may have got so far that the store exists.
            with contextlib.suppress(InvalidArgumentError):
                await world.ask_owner(OTHER, "restore", source=list(NOTES), revision=2)
        world.values = [b"one", b"two"]
        if await world.read_values(OTHER) != world.values:
            raise Violation(f"restored is {await world.read_values(OTHER)}")


class Delete(Operation):
    """`holdfast delete`, of a store that shares a pack with another."""

    name = "delete"

    async def prepare(self, world: World) -> None:
        await super().prepare(world)
        for store in (NOTES, CHAT):
            await world.app.append(store, b"one")
        await world.until_cold()
        # A snapshot of its own, too, and what no snapshot has.
        await world.app.append(NOTES, b"two")
        await world.until_cold()
        await world.app.append(NOTES, b"three")
        del world.app.sent[NOTES]

    async def act(self, world: World) -> None:
        world.told = await world.ask_owner(NOTES, "delete")

    async def again(self, world: World) -> None:
        # It is there, or it is not: whoever opens it while it is half deleted ends its deletion.
        if await world.read_values(NOTES) not in ([], [b"one", b"two", b"three"]):
            raise Violation(f"half deleted, it holds {await world.read_values(NOTES)}")
        with contextlib.suppress(NotFoundError):
            await world.ask_owner(NOTES, "delete")
        await _is_gone(world)
        # Nor does it come back for a coordinator that knows nothing.
        await lose_state(world)
        await _is_gone(world)
        await world.app.append(NOTES, b"anew")
        if await world.read_values(NOTES) != [b"anew"]:
            raise Violation(f"a store that is made anew holds {await world.read_values(NOTES)}")
        del world.app.sent[NOTES]
        world.values = [b"anew"]


class DeleteLocally(Delete):
    """The same without a shared file system."""

    name = "delete_locally"
    bucket_only = True


async def _is_gone(world: World) -> None:
    found = await world.read_values(NOTES)
    if found:
        raise Violation(f"a deleted store holds {found}")


async def lose_state(world: World) -> None:
    """Kill everything, and take what the coordinator knows away."""
    cluster = world.cluster
    for name in list(cluster.lives):
        cluster.kill(name)
    await cluster.unwind()
    cluster.files.lose((ROOT / COORDINATOR if cluster.bucket_only else ROOT) / "coordinator")
    cluster.start(COORDINATOR, "s1")


class Purge(PurgeStory, Operation):
    """`holdfast purge`, of a store that shares a pack with another."""

    name = "purge"

    async def prepare(self, world: World) -> None:
        await super().prepare(world)
        await self.lead_up(world)

    async def again(self, world: World) -> None:
        await purge_again(world)


class PurgeValue(PurgeStory, Operation):
    """`holdfast purge --seq`, of a store that shares a pack with another."""

    name = "purge_value"
    place = {"seq": 1}  # noqa: RUF012 (a ClassVar of the story)

    async def prepare(self, world: World) -> None:
        await super().prepare(world)
        await self.lead_up(world)

    async def again(self, world: World) -> None:
        await purge_value_again(world)


class PurgeValueLocally(PurgeValue):
    """The same without a shared file system."""

    name = "purge_value_locally"
    bucket_only = True


class Collect(Operation):
    """The collector: dropped versions, an orphan, a sparse pack, a dead log, an expired pin."""

    name = "collect"

    async def prepare(self, world: World) -> None:
        await super().prepare(world)
        for store in (NOTES, CHAT, OTHER):
            await world.app.append(store, b"one")
        await world.until_cold()
        # More versions than are kept, so that the pack is mostly dead weight.
        for number in range(5):
            for store in (NOTES, CHAT):
                await world.append_stored(store, b"%d" % number)
            await world.until_cold()

    async def act(self, world: World) -> None:
        bucket, _ = world.cluster.command("collector")
        for day in range(1, 9):
            now_ms = world.cluster.now_ms() + 2 * day * _DAY_MS
            Collector(bucket, clock_ms=lambda now_ms=now_ms: now_ms).run_pass()


class RetireSlots(Operation):
    """`stored` writes: slots, snapshots beyond them, the removal of one's own."""

    name = "retire_slots"

    async def act(self, world: World) -> None:
        await world.append_stored(NOTES, b"one")
        await world.append_stored(NOTES, b"two")
        await world.until_cold()
        await world.until("of the log its last slot is left", world.slots_are_retired)


class ReapSlots(Operation):
    """The log of a dead server in the bucket: fenced, its stores snapshotted, its slots removed."""

    name = "reap_slots"

    async def prepare(self, world: World) -> None:
        await super().prepare(world)
        await world.append_stored(NOTES, b"one")
        await world.append_stored(NOTES, b"two")
        world.cluster.kill("s1")

    async def act(self, world: World) -> None:
        world.cluster.start("s2")
        await world.until("the dead log is gone", world.dead_logs_are_gone)


class Rebuild(Operation):
    """`holdfast rebuild`: everything is lost but the bucket."""

    name = "rebuild"

    async def prepare(self, world: World) -> None:
        await super().prepare(world)
        await world.app.append(CHAT, b"one")
        await world.until_cold()
        # From here on no file is closed, hence none snapshotted: what follows is in the log alone,
        # but for the first write of the store that has a past, which is answered with a snapshot.
        world.cluster.idle_close_seconds = 60.0
        world.cluster.kill("s1")
        world.cluster.start("s1")
        await world.append_stored(NOTES, b"one")
        await world.append_stored(CHAT, b"two")
        await world.append_stored(CHAT, b"three")
        world.cluster.idle_close_seconds = IDLE_CLOSE_SECONDS
        for name in list(world.cluster.lives):
            world.cluster.kill(name)
        await world.cluster.unwind()
        world.cluster.files.lose(ROOT)

    async def act(self, world: World) -> None:
        self._rebuild(world, "rebuild")
        world.told = {}

    def repair(self, world: World) -> None:
        """Begin it anew in an empty folder, as the command wants it."""
        if world.told is None:
            for folder in (ROOT, ROOT.with_name("drafts")):
                world.cluster.files.lose(folder)
            self._rebuild(world, "rebuild again")

    def _rebuild(self, world: World, name: str) -> None:
        cluster = world.cluster
        bucket, disk = cluster.command(name)
        problems = rebuild(bucket, ROOT, disk, cluster.now_ms)
        if problems:
            raise Violation(f"a rebuild says {problems}")


OPERATIONS: Final[dict[str, Operation]] = {
    each.name: each
    for each in (
        GoCold(),
        PackAndGoCold(),
        ComeBack(),
        Restore(),
        RestoreAs(),
        Delete(),
        DeleteLocally(),
        Purge(),
        PurgeValue(),
        PurgeValueLocally(),
        Collect(),
        RetireSlots(),
        ReapSlots(),
        Rebuild(),
    )
}

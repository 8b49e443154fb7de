"""Servers with one role each, as real processes: one owns stores, others do the cold work."""

from __future__ import annotations

from pathlib import Path

from holdfast.client.wire.router import Router
from holdfast.protocol.subjects import Subjects
from holdfast.protocol.work.cold_work import SWEEPS
from tests.integration.test_tiers import World, append, messages
from tests.support.cluster import TENANT, Process, connected_peer, running_processes
from tests.support.waiting import until

#: It closes files at once, and leaves it to others to snapshot them.
_OWNER = ("--idle-close-seconds", "0.1", "--snapshot-seconds", "3600", "--max-lag", "2")
_KEEPER = ("--snapshot-seconds", "0.1", "--cold-after-seconds", "0.5", "--max-lag", "0.5")
_ALL_WORK = 3 + len(SWEEPS)


async def test_a_server_for_cold_work_does_what_no_owner_does_and_another_one_takes_over(
    tmp_path: Path,
) -> None:
    with running_processes(tmp_path) as processes:
        world = World(processes, tmp_path / "bucket")

        def owner() -> Process:
            return world.start("s1", *_OWNER, "--roles", "persist", "--keep-snapshots", "1")

        def keeper(name: str) -> Process:
            return processes.start_persist(
                name,
                *("--bucket", world.url, *_KEEPER, "--roles", "tier", "--keep-snapshots", "1"),
                module="tests.support.collecting_server",
            )

        first_owner, first = owner(), keeper("t1")
        async with connected_peer(processes) as peer:
            await peer.live()
            await append(peer, "notes", 1, b"one")
            # It ends cleanly: nobody owns the store, and the bucket has nothing of it.
            assert first_owner.stop() == 0
            assert world.newest("notes") is None
            await world.cold("notes")
            snapshot = world.newest("notes")
            assert snapshot is not None

            router = Router(peer.bus, Subjects(), TENANT)
            (told,) = [each for each in await router.servers() if each.server == "t1"]
            assert (list(told.roles), told.assigned_stores) == (["tier"], 0)
            assert told.claims == _ALL_WORK
            first.kill()
            second_owner, second = owner(), keeper("t2")
            assert await messages(peer, "notes") == [b"one"]
            await append(peer, "notes", 2, b"two")
            assert second_owner.stop() == 0
            await world.snapshotted("notes", 2)
            await world.cold("notes")
            # Nothing names the first snapshot any more.
            objects = world.folder / snapshot.key
            await until(lambda: not objects.exists(), "the first snapshot is collected")

            (told,) = [each for each in await router.servers() if each.server == "t2"]
            assert told.claims == _ALL_WORK
            assert second.stop() == 0

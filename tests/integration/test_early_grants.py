"""A store that a client has just been told the owner of is opened without a question."""

from __future__ import annotations

from pathlib import Path

from holdfast.protocol import frames
from holdfast.protocol.frames import decode_control
from tests.support.cluster import SUBJECTS, values
from tests.support.waiting import until
from tests.support.world_in_loop import World, world_in_loop


async def restarted(world: World) -> None:
    """End the server cleanly, start its next life, and let that tell what it gave up."""
    world.servers["s1"].stop()
    await world.ended("s1")
    beats = world.published(SUBJECTS.heartbeat())
    server = await world.start("s1")

    def has_told() -> bool:
        told = [decode_control(beat.payload) for sender, beat in beats if sender == "s1"]
        mine = [each for each in told if each["incarnation"] == server.incarnation]
        return any(each["given_up"] == 0 for each in mine)

    await until(has_told)


async def test_a_cold_store_is_opened_without_asking_the_coordinator(tmp_path: Path) -> None:
    async with world_in_loop(tmp_path) as world:
        await world.start("s1")
        await world.peer.write("notes", 1, [frames.APPEND, b"1"])
        await restarted(world)
        opens = world.published(SUBJECTS.cluster("open"))
        assert await values(world.peer) == [b"1"]
        assert opens == []
        outcome = await world.peer.write("notes", 2, [frames.APPEND, b"2"])
        assert outcome.results == [[2, 2]]
        assert outcome.epoch == 2


async def test_a_store_is_opened_if_the_grant_that_nobody_asked_for_is_lost(
    tmp_path: Path,
) -> None:
    async with world_in_loop(tmp_path) as world:
        await world.start("s1")
        await world.peer.write("notes", 1, [frames.APPEND, b"1"])
        await restarted(world)
        opens = world.published(SUBJECTS.cluster("open"))
        world.cut.add(("c", "s1"))
        assert await world.peer.resolve("notes") == "s1"
        world.cut.clear()
        reading = (1, "notes", 0, 0, 0, [[frames.GET_MESSAGES]])
        outcome = await world.peer.group(reading)
        assert [row[3] for row in outcome.results[0][0]] == [b"1"]
        assert len(opens) == 1

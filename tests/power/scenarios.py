"""What happens while the power goes: short stories, each of which ends by itself if it does not.

Each gets a running cluster with a coordinator and the server s1; `arm` is where its events begin to
count. Limits are small (`run.py`), so a few writes fill segments and idle stores close at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from holdfast.protocol import frames
from holdfast.protocol.names import StoreId
from tests.power.application import Application, kv, stream
from tests.power.cluster import COORDINATOR, LAYOUT, ROOT, Cluster
from tests.simulation.simulated_files import Survival

CHAT: Final = stream("chat")
NOTES: Final = stream("notes.today")
SETTINGS: Final = kv("settings")
#: More than a quarter of a segment as `run.py` has them.
_LARGE: Final = b"x" * 600
_IDLE_SECONDS: Final = 1.5

Arm = Callable[[], None]
Story = Callable[[Cluster, Application, Arm], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A story, and the cluster it takes."""

    name: str
    story: Story
    servers: tuple[str, ...] = ("s1",)
    idle_close_seconds: float = 1000.0
    #: The story starts the first processes itself.
    from_nothing: bool = False


async def _write_to_a_new_store(cluster: Cluster, app: Application, arm: Arm) -> None:
    arm()
    await app.append(CHAT, b"first")
    await app.append(CHAT, b"second", b"third")


async def _write_to_several_stores_in_one_tick(
    cluster: Cluster, app: Application, arm: Arm
) -> None:
    await app.append(CHAT, b"first")
    arm()
    for number in range(3):
        value = b"%d" % number
        await app.write(
            (CHAT, [[frames.APPEND, value]]),
            (NOTES, [[frames.APPEND, value], [frames.APPEND, value * 2]]),
            (SETTINGS, [[frames.SET_ENTRY, f"key{number % 2}", value]]),
        )


async def _materialise(cluster: Cluster, app: Application, arm: Arm) -> None:
    await app.append(CHAT, b"first", b"second")
    await _set(app, theme=b"dark")
    arm()
    # A read makes the file hold what is synced.
    await app.read(CHAT)
    await app.read(SETTINGS)
    await app.write((CHAT, [[frames.DELETE_MESSAGES, [1]]]))
    await app.write((SETTINGS, [[frames.DELETE_ENTRIES, ["theme"]]]))
    await _set(app, theme=b"light", font=b"mono")
    await app.read(CHAT)
    await app.read(SETTINGS)


async def _write_during_checkpoints(cluster: Cluster, app: Application, arm: Arm) -> None:
    await app.append(CHAT, b"first")
    await _set(app, theme=b"dark")
    arm()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_write_for_long(app, CHAT, 14))
        tasks.create_task(_write_for_long(app, NOTES, 14))


async def _write_new_files_whole(cluster: Cluster, app: Application, arm: Arm) -> None:
    arm()
    await app.append(NOTES, b"first")
    await _set(app, theme=b"dark")
    # Fills segments, so that the two small stores are made durable while they are open.
    await _write_for_long(app, CHAT, 8)
    await asyncio.sleep(0.3)
    await app.append(NOTES, b"second")
    await app.read(NOTES)
    await _set(app, theme=b"light")


async def _take_over_files_written_whole(cluster: Cluster, app: Application, arm: Arm) -> None:
    await app.append(NOTES, b"first")
    await _set(app, theme=b"dark")
    await _write_for_long(app, CHAT, 8)
    await asyncio.sleep(0.3)
    await app.append(NOTES, b"beyond the file")
    cluster.start("s2")
    arm()
    cluster.cut_power(Survival.PREFIX, "s1")
    await app.append(NOTES, b"after the takeover")
    await _set(app, theme=b"light")
    await app.read(SETTINGS)


async def _retire_segments(cluster: Cluster, app: Application, arm: Arm) -> None:
    arm()
    for number in range(12):
        await app.append(CHAT, _LARGE, b"%d" % number)
        await app.write((NOTES, [[frames.APPEND, _LARGE]]))
        await asyncio.sleep(0.1)
    await app.write((CHAT, [[frames.TRIM, 10]]))
    await asyncio.sleep(0.6)


async def _close_idle_and_reopen(cluster: Cluster, app: Application, arm: Arm) -> None:
    arm()
    await app.append(CHAT, b"first")
    await _set(app, theme=b"dark")
    await asyncio.sleep(_IDLE_SECONDS)
    await app.append(CHAT, b"second")
    await asyncio.sleep(_IDLE_SECONDS)
    await app.read(CHAT)


async def _take_over(cluster: Cluster, app: Application, arm: Arm) -> None:
    await _write_some(app)
    cluster.start("s2")
    cluster.cut_power(Survival.PREFIX, "s1")
    arm()
    await app.append(CHAT, b"after the takeover")
    await _set(app, theme=b"light")
    await app.read(CHAT)


async def _reap_a_dead_log(cluster: Cluster, app: Application, arm: Arm) -> None:
    await _write_some(app)
    cluster.kill("s1")
    cluster.start("s2")
    await app.append(CHAT, b"after the takeover")
    arm()
    while dead_logs(cluster):
        await asyncio.sleep(0.5)
    await app.append(NOTES, b"after the reaping")


async def _copy_to_a_new_generation(cluster: Cluster, app: Application, arm: Arm) -> None:
    await _write_some(app)
    # s1 stops like a stopped process, with the locks of its files.
    cluster.lives["s1"].process.pause()
    cluster.start("s2")
    arm()
    await app.append(CHAT, b"after the copy")
    await _set(app, theme=b"light")
    await app.read(CHAT)


async def _rebuild_a_damaged_file(cluster: Cluster, app: Application, arm: Arm) -> None:
    await _write_some(app)
    cluster.kill("s1")
    path = LAYOUT.store(CHAT)
    inode = cluster.files.file(path, "onlooker")
    inode.write("onlooker", 0, b"not a database " * 20)
    inode.sync()
    cluster.start("s2")
    arm()
    await app.append(CHAT, b"after the rebuilding")
    await app.read(CHAT)


async def _stop_cleanly(cluster: Cluster, app: Application, arm: Arm) -> None:
    await _write_some(app)
    await app.append(NOTES, b"not yet in a file")
    arm()
    await cluster.stop("s1")
    await cluster.stop(COORDINATOR)


async def _hand_over_while_writing(cluster: Cluster, app: Application, arm: Arm) -> None:
    await _write_some(app)
    cluster.start("s2")
    arm()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_write_for_long(app, CHAT, 6))
        tasks.create_task(cluster.stop("s1"))


async def _start_from_nothing(cluster: Cluster, app: Application, arm: Arm) -> None:
    arm()
    cluster.start(COORDINATOR, "s1")
    await app.append(CHAT, b"first")


SCENARIOS: Final = {
    scenario.name: scenario
    for scenario in (
        Scenario("start_from_nothing", _start_from_nothing, from_nothing=True),
        Scenario("write_to_a_new_store", _write_to_a_new_store),
        Scenario("write_to_several_stores_in_one_tick", _write_to_several_stores_in_one_tick),
        Scenario("materialise", _materialise),
        Scenario("write_during_checkpoints", _write_during_checkpoints),
        Scenario("write_new_files_whole", _write_new_files_whole),
        Scenario("take_over_files_written_whole", _take_over_files_written_whole, ("s1", "s2")),
        Scenario("retire_segments", _retire_segments),
        Scenario("close_idle_and_reopen", _close_idle_and_reopen, idle_close_seconds=0.5),
        Scenario("take_over", _take_over, ("s1", "s2")),
        Scenario("reap_a_dead_log", _reap_a_dead_log, ("s1", "s2")),
        Scenario("copy_to_a_new_generation", _copy_to_a_new_generation, ("s1", "s2")),
        Scenario("rebuild_a_damaged_file", _rebuild_a_damaged_file, ("s1", "s2")),
        Scenario("stop_cleanly", _stop_cleanly),
        Scenario("hand_over_while_writing", _hand_over_while_writing, ("s1", "s2")),
    )
}


def dead_logs(cluster: Cluster) -> list[str]:
    """Return the logs on disk of incarnations that do not live."""
    alive = {life.incarnation for life in cluster.lives.values() if not life.disk.dead}
    disk = cluster.disk_of_nobody()
    try:
        return [
            incarnation
            for server in disk.names(ROOT / "servers")
            for incarnation in disk.names(LAYOUT.server(server))
            if incarnation not in alive and disk.exists(LAYOUT.log(server, incarnation))
        ]
    finally:
        disk.close()


async def _write_some(app: Application) -> None:
    """Leave some changes in files and some in the log alone."""
    await app.append(CHAT, b"first", b"second")
    await _set(app, theme=b"dark", font=b"mono")
    await app.read(CHAT)
    await app.append(CHAT, b"third")
    await app.read(SETTINGS)
    await app.write((CHAT, [[frames.DELETE_MESSAGES, [2]]]))
    await app.append(NOTES, b"in the log alone")


async def _write_for_long(app: Application, store: StoreId, count: int) -> None:
    for number in range(count):
        await app.append(store, b"%d " % number + _LARGE)
        await asyncio.sleep(0.05)


async def _set(app: Application, **entries: bytes) -> None:
    operations = [[frames.SET_ENTRY, key, value] for key, value in entries.items()]
    await app.write((SETTINGS, operations))

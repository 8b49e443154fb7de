"""No power cut loses, doubles or changes what was acknowledged, at whatever point it comes."""

from __future__ import annotations

import asyncio
import random

import pytest

from holdfast.shared_fs.disk.quarantine import quarantined
from tests.power.application import Application, Violation
from tests.power.choice import some_cuts
from tests.power.cluster import COORDINATOR, LAYOUT, Cluster, Cut, Scope
from tests.power.planted import PLANTED
from tests.power.run import run, with_small_limits
from tests.power.scenarios import CHAT, SCENARIOS, dead_logs
from tests.simulation.simulated_files import Survival
from tests.simulation.virtual_loop import VirtualLoop
from tests.support.effort import tries

_SEED = 1
#: A cut that finds it, where few do. It is tried before the others.
_FOUND_BY = {
    "never_sync_the_log": "132/none/all/0",
    "ack_before_the_sync": "132/none/all/0",
    "take_over_before_the_log_is_applied": "120/all/all/0",
    "never_sync_files_written_whole": "224/none/all/0",
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_power_cut_at_any_point_takes_nothing_that_was_acknowledged(scenario: str) -> None:
    failed = [
        result
        for cuts in some_cuts(
            scenario, _SEED, single_count=tries(3, 5, 28), double_count=tries(1, 2, 10)
        )
        if (result := run(scenario, *cuts)).violation
    ]
    assert not failed, "\n".join(map(str, failed[:3]))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_without_a_power_cut_all_is_well(scenario: str) -> None:
    result = run(scenario)
    assert result.violation is None
    assert all(count > 10 for count in result.event_counts)


@pytest.mark.parametrize("scenario", ["take_over", "copy_to_a_new_generation"])
def test_a_recovery_that_is_interrupted_again_and_again_ends_well(scenario: str) -> None:
    cuts = [Cut(30 + 7 * number, Survival.SECTORS, Scope.ALL, number) for number in range(6)]
    result = run(scenario, *cuts)
    assert result.violation is None
    assert len(result.event_counts) == len(cuts) + 1


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str) -> None:
    planted, scenario = PLANTED[bug]
    story_count = run(scenario).event_counts[0]
    cuts = [
        Cut(at, survival)
        for at in range(1, story_count + 2)
        for survival in (Survival.NONE, Survival.ALL)
    ]
    random.Random(_SEED).shuffle(cuts)
    cuts.sort(key=lambda cut: str(cut) != _FOUND_BY.get(bug))
    with planted():
        assert any(run(scenario, cut).violation for cut in cuts)


def test_a_run_can_be_repeated() -> None:
    cut = Cut.parse("40/sectors/all/7")
    assert str(cut) == "40/sectors/all/7"
    first, second = run("take_over", cut), run("take_over", cut)
    assert first == second
    assert first.events


def test_a_durable_file_that_is_damaged_is_refused_though_a_log_holds_its_beginning() -> None:
    async def story() -> None:
        async with Cluster((COORDINATOR, "s1", "s2"), idle_close_seconds=0.5) as cluster:
            app = Application(cluster.network)
            cluster.start(COORDINATOR, "s1")
            await app.append(CHAT, b"in the log of s1")
            cluster.kill("s1")
            disk = cluster.disk_of_nobody()
            # So the log of s1 stays.
            reaping = disk.lock(LAYOUT.server("s1") / "reaper", "a reaper that has stopped")
            cluster.start("s2")
            await app.append(CHAT, b"in no log once the store is closed")
            # Three times what a store may be idle before it is closed, in virtual time.
            await asyncio.sleep(1.5)
            assert dead_logs(cluster)
            [generation] = LAYOUT.generations(disk, CHAT)
            inode = cluster.files.file(LAYOUT.store(CHAT, generation), "onlooker")
            inode.write("onlooker", 0, b"not a database " * 20)
            with pytest.raises(Violation, match="StoreDamagedError"):
                await app.read(CHAT)
            with pytest.raises(Violation, match="StoreDamagedError"):
                await app.append(CHAT, b"more")
            assert len(quarantined(disk, LAYOUT, CHAT)) == 1
            reaping.release()
            disk.close()

    with with_small_limits(), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(story())

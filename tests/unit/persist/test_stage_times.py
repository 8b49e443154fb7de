"""What a server counts of the time of its writes."""

from __future__ import annotations

from pathlib import Path

from holdfast.protocol import frames
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.monitoring.samples import HistogramValue
from tests.support.pipeline_world import running


async def test_every_group_of_writes_is_counted_once_in_each_stage(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        one, two = world.stores
        append = [frames.APPEND, b"v"]
        await world.ask(world.arrival(one, append), world.arrival(two, append))
        await world.ask(world.arrival(one, [frames.HEAD]))
        await world.ask(world.arrival(one, append, append))
        samples = world.life.statistics.samples()
        values = {(each.name, dict(each.labels).get("stage")): each.value for each in samples}
        for stage in ("queue", "sync", "gate", "release"):
            times = values[metrics.APPEND_STAGES.name, stage]
            assert isinstance(times, HistogramValue)
            assert times.observations == 3 and 0 <= times.total < 60, stage
        syncs = values[metrics.SYNCS.name, None]
        assert isinstance(syncs, HistogramValue)
        assert syncs.observations == values[metrics.TICKS.name, None] == 2
        assert values[metrics.LOG_WRITTEN.name, None] == world.log.size_bytes

"""How changes of consumers are gathered into writes."""

from __future__ import annotations

from holdfast.protocol.errors import StorageError
from tests.support.consumer_set_world import SECOND, ConsumerSetWorld, in_virtual_time


def test_many_deliveries_and_acks_are_few_writes() -> None:
    async def work(world: ConsumerSetWorld) -> None:
        await world.create("c")
        inbox = await world.pull("c", batch=500, expires=60 * SECOND)
        await world.settle()
        before = world.stream.write_count
        for _ in range(300):
            world.stream.publish("S.a")
        await world.settle()
        for message in inbox.take():
            world.app.publish(message.reply, b"")
        await world.settle()
        assert world.stream.write_count - before <= 4
        # What was delivered and acknowledged in between is no row.
        assert not world.stream.recorded["c"][2]

    in_virtual_time(work)


def test_a_change_that_is_larger_than_a_write_is_recorded_in_parts() -> None:
    async def work(world: ConsumerSetWorld) -> None:
        count = 10_000
        await world.create("c", max_ack_pending=40_000)
        inbox = await world.pull("c", batch=count, expires=60 * SECOND)
        world.stream.writes_pass.clear()
        for _ in range(count):
            world.stream.publish("S.a")
        await world.settle()
        world.stream.writes_pass.set()
        await world.settle()
        assert len(world.stream.recorded["c"][2]) == count
        assert world.stream.most_rows <= 8192
        await world.restart()
        assert (await world.info("c"))["num_ack_pending"] == count
        assert len(inbox.received) == count

    in_virtual_time(work)


def test_a_consumer_that_cannot_be_recorded_does_not_exist() -> None:
    async def work(world: ConsumerSetWorld) -> None:
        world.stream.publish("S.a")
        world.stream.write_fault = StorageError(reason="full")
        try:
            await world.create("c")
        except StorageError:
            pass
        else:
            raise AssertionError("it was created")
        world.stream.write_fault = None
        assert (await world.info("c"))["error"]["err_code"] == 10014
        assert (await world.create("c"))["num_pending"] == 1
        await world.settle()
        await world.restart()
        assert (await world.info("c"))["num_pending"] == 1

    in_virtual_time(work)

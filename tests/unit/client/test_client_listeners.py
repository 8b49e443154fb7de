"""Who listens to which store: one subscription on the bus, however many follow the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.client.following.listeners import Listeners
from holdfast.client.following.merge import Broadcast
from holdfast.protocol.bus.bus import BusCallback, BusMessage, BusSubscription
from holdfast.protocol.bus.bus_memory import MemoryBus, MemoryNetwork
from holdfast.protocol.changes import CHANGE_SET_MESSAGE
from holdfast.protocol.frames import encode_changes

KEY = (0, "s")
SUBJECT = "hf.t.chg.s.s"


class _Ear:
    def __init__(self) -> None:
        self.revisions: list[int] = []
        self.lost_count = 0

    def heard(self, broadcast: Broadcast) -> None:
        self.revisions += [change.revision for change in broadcast.held(None).visible]

    def lost(self) -> None:
        self.lost_count += 1


class _CountingBus(MemoryBus):
    """One that knows what is subscribed to, and waits before it subscribes."""

    subscribed = 0
    before: Callable[[], asyncio.Future[None]] | None = None

    async def subscribe(self, subject: str, callback: BusCallback) -> BusSubscription:
        if self.before is not None:
            await self.before()
        self.subscribed += 1
        return await super().subscribe(subject, callback)


def _message(revision: int) -> BusMessage:
    change = [CHANGE_SET_MESSAGE, revision, b"v"]
    return BusMessage(SUBJECT, encode_changes(1, revision - 1, 0, [change]), "")


async def _publish(bus: MemoryBus, message: BusMessage) -> None:
    await bus.publish(SUBJECT, message.payload)
    await bus.flush()
    # The network delivers in the next turn of the loop.
    await asyncio.sleep(0)


async def test_all_who_follow_a_store_share_one_subscription_and_hear_until_they_are_removed() -> (
    None
):
    network = MemoryNetwork()
    bus, other = _CountingBus(network, "client", "client"), network.connect("other")
    listeners, ears = Listeners(bus), [_Ear(), _Ear()]
    await asyncio.gather(*(listeners.add(SUBJECT, ear) for ear in ears))
    await listeners.add(SUBJECT, ears[0])
    assert bus.subscribed == 1
    await _publish(other, _message(1))
    await listeners.remove(SUBJECT, ears[0])
    await _publish(other, _message(2))
    await _publish(other, BusMessage(SUBJECT, b"of no sense", ""))
    await listeners.remove(SUBJECT, ears[1])
    await listeners.remove(SUBJECT, ears[1])
    await _publish(other, _message(3))
    assert [ear.revisions for ear in ears] == [[1], [1, 2]]
    assert [ear.lost_count for ear in ears] == [0, 1]
    assert not network._subscriptions
    await listeners.add(SUBJECT, ears[0])
    await _publish(other, _message(4))
    assert ears[0].revisions == [1, 4]


async def test_who_is_removed_while_the_bus_subscribes_leaves_nothing_behind() -> None:
    network = MemoryNetwork()
    bus = _CountingBus(network, "client", "client")
    gate = asyncio.get_running_loop().create_future()
    bus.before = lambda: asyncio.shield(gate)
    listeners, first, second = Listeners(bus), _Ear(), _Ear()
    cancelled = asyncio.create_task(listeners.add(SUBJECT, first))
    adding = asyncio.create_task(listeners.add(SUBJECT, second))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    await listeners.remove(SUBJECT, first)
    await asyncio.sleep(0)
    await listeners.remove(SUBJECT, second)
    gate.set_result(None)
    await adding
    assert bus.subscribed == 1
    assert not network._subscriptions

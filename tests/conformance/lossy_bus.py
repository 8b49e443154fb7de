"""A bus that loses some of the broadcasts, as NATS core may.

bus = LossyBus(await connect_nats(url), random.Random(7), loss=0.3)
async with connect(bus=bus, tenant="acme") as hf: ...
await bus.close()
"""

from __future__ import annotations

import random
from collections.abc import Callable

from holdfast.protocol.bus.bus import Bus, BusCallback, BusMessage, BusSubscription
from holdfast.protocol.errors import NotAllowedError
from holdfast.protocol.subjects import CLUSTER_TENANT, Inboxes


class LossyBus(Bus):
    """Passes everything on to another bus, but for a share of what comes on change subjects."""

    def __init__(self, bus: Bus, rng: random.Random, loss: float) -> None:
        self.lost_count = 0
        self._bus = bus
        self._rng = rng
        self._loss = loss

    @property
    def max_payload_bytes(self) -> int:
        return self._bus.max_payload_bytes

    @property
    def connected(self) -> bool:
        return self._bus.connected

    @property
    def clustered(self) -> bool:
        return self._bus.clustered

    async def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        await self._bus.publish(subject, payload, reply)

    async def subscribe(self, subject: str, callback: BusCallback) -> BusSubscription:
        def pass_on(message: BusMessage) -> None:
            if self._rng.random() < self._loss:
                self.lost_count += 1
            else:
                callback(message)

        is_changes = ".chg." in subject
        return await self._bus.subscribe(subject, pass_on if is_changes else callback)

    async def request(
        self, subject: str, payload: bytes, timeout_seconds: float, tenant: str = CLUSTER_TENANT
    ) -> bytes:
        return await self._bus.request(subject, payload, timeout_seconds, tenant)

    def new_inbox(self, tenant: str = CLUSTER_TENANT) -> str:
        return self._bus.new_inbox(tenant)

    def move_inboxes(self, inboxes: Inboxes) -> None:
        self._bus.move_inboxes(inboxes)

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        self._bus.on_disconnect(callback)

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        self._bus.on_reconnect(callback)

    def on_refused(self, callback: Callable[[NotAllowedError], None]) -> None:
        self._bus.on_refused(callback)

    async def flush(self) -> None:
        await self._bus.flush()

    async def close(self) -> None:
        await self._bus.close()

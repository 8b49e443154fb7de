"""A bus that loses some of the broadcasts, as NATS core may.

bus = LossyBus(await connect_nats(url), random.Random(7), loss=0.3)
async with connect(bus=bus, tenant="acme") as hf: ...
await bus.close()
"""

from __future__ import annotations

import random

from holdfast.protocol.bus.bus import Bus, BusCallback, BusMessage, BusSubscription
from holdfast.protocol.direct.bus_around import BusAround


class LossyBus(BusAround):
    """Passes everything on to another bus, but for a share of what comes on change subjects."""

    def __init__(self, bus: Bus, rng: random.Random, loss: float) -> None:
        super().__init__(bus)
        self.lost_count = 0
        self._rng = rng
        self._loss = loss

    async def subscribe(self, subject: str, callback: BusCallback) -> BusSubscription:
        def pass_on(message: BusMessage) -> None:
            if self._rng.random() < self._loss:
                self.lost_count += 1
            else:
                callback(message)

        is_changes = ".chg." in subject
        return await self._bus.subscribe(subject, pass_on if is_changes else callback)

"""A bus around another one, which does everything that is not done otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.protocol.bus.bus import Bus, BusCallback, BusSubscription
from holdfast.protocol.errors import NotAllowedError, TooLargeError
from holdfast.protocol.subjects import CLUSTER_TENANT, Inboxes


class BusAround(Bus):
    """Passes everything on to `bus`."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

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

    def publish_soon(self, subject: str, payload: bytes, reply: str = "") -> bool:
        return self._bus.publish_soon(subject, payload, reply)

    async def publish_all(
        self,
        messages: Sequence[tuple[str, bytes]],
        too_large: Callable[[str, TooLargeError], None],
    ) -> None:
        await self._bus.publish_all(messages, too_large)

    def send_now(self) -> None:
        self._bus.send_now()

    async def subscribe(self, subject: str, callback: BusCallback) -> BusSubscription:
        return await self._bus.subscribe(subject, callback)

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

"""The leafnode connection as the consumers of one stream use it: fenced.

Writes of a gateway that lost a stream are refused by its owner. Deliveries go to clients and pass
no owner: a gateway that was stopped, or cut off, could deliver once more what its successor has
confirmed as done. So deliveries leave at once only while it is sure that no other gateway serves
the stream (`Presence`). Otherwise everything waits, in order, until the owner has said that the
serving epoch is still this gateway's, just now. If it is not, no message is delivered any more.

What waits has a bound: beyond it, messages are lost as if the connection were.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, NamedTuple

from holdfast.gateway.jetstream.wire.ports import InterestWatch, LeafPort
from holdfast.protocol.errors import HoldfastError, NotAllowedError
from holdfast.protocol.limits import PORT_BUSY_BYTES

logger = logging.getLogger("holdfast.gateway")

#: An owner that does not answer is asked again after so long; the client below has tried longer.
_TRY_AGAIN_SECONDS: Final = 0.25
#: An older answer of an owner counts only if this gateway is sure: it may have come before the
#: gateway was stopped. Others take one for dead that was silent for longer.
_FRESH_SECONDS: Final = 1.0
#: What a message that waits takes beside its text.
_OVERHEAD_BYTES: Final = 256


class Presence(ABC):
    """What a gateway knows of how the others see it."""

    @abstractmethod
    def sure_since(self, stream: str) -> float:
        """Return the time of the loop since which no other gateway can have taken this one for
        dead, nor asked it for the stream; infinity if that is not sure now."""


class _Held(NamedTuple):
    inbox: str
    payload: bytes
    reply: str
    subject: str
    headers: bytes


class DeliveryFence(LeafPort):
    """The leaf of one stream. `is_served` asks the owner whether the serving epoch is still this
    gateway's; `on_deposed` is called if it is not."""

    def __init__(
        self,
        leaf: LeafPort,
        stream: str,
        presence: Presence,
        is_served: Callable[[], Awaitable[bool]],
        on_deposed: Callable[[], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._leaf = leaf
        self._stream = stream
        self._presence = presence
        self._is_served = is_served
        self._on_deposed = on_deposed
        self._spawn = spawn
        self._time = asyncio.get_running_loop().time
        #: When the owner was last asked and confirmed the serving epoch.
        self._confirmed_at = float("-inf")
        self._held: list[_Held] = []
        self._held_bytes = 0
        self._asking = False
        self._settled: list[asyncio.Future[None]] = []
        self._deposed = False
        # One look for all deliveries of a turn.
        self._looked_at = float("-inf")
        self._is_sure = False

    def confirmed(self, asked_at: float) -> None:
        """The owner has confirmed the serving epoch; it was asked at this time of the loop."""
        self._confirmed_at = max(self._confirmed_at, asked_at)
        self._looked_at = float("-inf")

    def depose(self) -> None:
        """Deliver no more messages: another gateway does. Statuses still tell clients so."""
        self._deposed = True
        held, self._held, self._held_bytes = self._held, [], 0
        for each in held:
            self._send(each)
        self._wake()

    async def settled(self) -> None:
        """Return when nothing waits."""
        while self._asking:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._settled.append(future)
            await future

    # LeafPort

    def deliver(
        self,
        inbox: str,
        payload: bytes,
        *,
        reply: str = "",
        subject: str = "",
        headers: bytes = b"",
    ) -> None:
        if not self._asking and self._sure() and not self._deposed:
            self._leaf.deliver(inbox, payload, reply=reply, subject=subject, headers=headers)
            return
        held = _Held(inbox, payload, reply, subject, headers)
        if self._deposed:
            self._send(held)
            return
        size_bytes = sum(map(len, held)) + _OVERHEAD_BYTES
        if self._held_bytes + size_bytes > PORT_BUSY_BYTES:
            return
        self._held.append(held)
        self._held_bytes += size_bytes
        if not self._asking:
            self._asking = True
            self._spawn(self._ask())

    @property
    def connected(self) -> bool:
        return self._leaf.connected

    @property
    def writable(self) -> bool:
        return not self._asking and self._leaf.writable

    def on_writable(self, callback: Callable[[], None]) -> None:
        self._leaf.on_writable(callback)

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        self._leaf.on_reconnect(callback)

    def on_refused(self, callback: Callable[[NotAllowedError], None]) -> None:
        self._leaf.on_refused(callback)

    def has_interest(self, subject: str) -> bool:
        return self._leaf.has_interest(subject)

    def has_plain_interest(self, subject: str) -> bool:
        return self._leaf.has_plain_interest(subject)

    def queue_groups(self, subject: str) -> frozenset[str]:
        return self._leaf.queue_groups(subject)

    def watch(self, subject: str, callback: Callable[[bool], None]) -> InterestWatch:
        return self._leaf.watch(subject, callback)

    def barrier(self, callback: Callable[[], None]) -> None:
        self._leaf.barrier(callback)

    async def close(self) -> None:
        """The leaf is the gateway's, and stays."""

    # Inside

    def _sure(self) -> bool:
        now = self._time()
        if now != self._looked_at:
            self._looked_at = now
            self._is_sure = self._confirmed_at >= self._presence.sure_since(self._stream)
        return self._is_sure

    def _was_sure_at(self, asked_at: float) -> bool:
        return asked_at >= self._presence.sure_since(self._stream)

    def _send(self, held: _Held) -> None:
        if self._deposed and held.subject:
            return
        inbox, payload, reply, subject, headers = held
        try:
            self._leaf.deliver(inbox, payload, reply=reply, subject=subject, headers=headers)
        except HoldfastError as error:
            logger.warning(
                "jetstream.not_delivered consumer=%s inbox=%.80s reason=%s",
                *(self._stream, inbox, error),
            )

    async def _ask(self) -> None:
        """Ask the owner, and send what waited before that; until nothing waits."""
        try:
            while self._held and not self._deposed:
                asked_at, count = self._time(), len(self._held)
                try:
                    is_served = await self._is_served()
                except HoldfastError as error:
                    logger.warning(
                        "jetstream.delivery_doubtful stream=%s reason=%s", self._stream, error
                    )
                    await asyncio.sleep(_TRY_AGAIN_SECONDS)
                    continue
                if self._deposed:
                    break
                if not is_served:
                    self._on_deposed()
                    self.depose()
                    break
                if self._time() - asked_at > _FRESH_SECONDS and not self._was_sure_at(asked_at):
                    continue
                self.confirmed(asked_at)
                held, self._held = self._held[:count], self._held[count:]
                self._held_bytes -= sum(sum(map(len, each)) + _OVERHEAD_BYTES for each in held)
                for each in held:
                    self._send(each)
        finally:
            self._asking = False
            self._wake()

    def _wake(self) -> None:
        settled, self._settled = self._settled, []
        for future in settled:
            if not future.done():
                future.set_result(None)

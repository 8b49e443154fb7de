"""Groups of operations to the server of this process, and their answers.

One frame carries one group: the server makes one tick of all frames that have arrived, so nothing
is gained by larger ones. All of it runs in the loop of the server.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from holdfast.protocol import frames
from holdfast.protocol.bus.bus import Bus, BusMessage, BusSubscription
from holdfast.protocol.errors import (
    HoldfastError,
    MalformedFrameError,
    UnavailableError,
    error_from_wire,
)
from holdfast.protocol.frames import Outcome
from holdfast.protocol.limits import CONTROL_TIMEOUT_SECONDS
from holdfast.protocol.names import StoreKind
from holdfast.protocol.subjects import Subjects

#: The writer of frames that only read.
_READER: Final = b"stream-library"


class StreamRequests:
    """The requests of one library, all for one tenant and one server."""

    def __init__(self, bus: Bus, subjects: Subjects, tenant: str, server: str) -> None:
        self._bus = bus
        self._tenant = tenant
        self._frames = subjects.server(tenant, server)
        self._destroys = subjects.destroy(tenant, server)
        self._inbox = bus.new_inbox(tenant)
        self._subscription: BusSubscription | None = None
        self._count = 0
        self._waiting: dict[str, asyncio.Future[Outcome]] = {}
        self._ended: HoldfastError | None = None

    async def begin(self) -> None:
        """Get answers from now on."""
        self._subscription = await self._bus.subscribe(f"{self._inbox}.*", self._on_reply)

    @property
    def ended(self) -> HoldfastError:
        """What is asked for now fails with this."""
        return self._ended or UnavailableError(reason="the loop of the library ends")

    def end(self, reason: HoldfastError) -> None:
        """Answer everything that waits, and whatever comes, with `reason`."""
        self._ended = self._ended or reason
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(self._ended)
        self._waiting.clear()

    async def write(
        self, name: str, writer: bytes, counter: int, durability: int, operations: list[list[Any]]
    ) -> Outcome:
        """Have a group of writes executed, and return its outcome once it is durable. The writer
        has no other group in flight. Raises the error of a group that was refused."""
        group = [int(StoreKind.STREAM), name, counter, counter, durability, operations]
        return await self._ask(writer, group)

    async def read(self, name: str, operation: list[Any]) -> Any:
        """Return the result of a read. Raises the read's error."""
        group = [int(StoreKind.STREAM), name, 0, 0, 0, [operation]]
        outcome = await self._ask(_READER, group)
        return checked_result(outcome, 0)

    async def destroy(self, name: str, epoch: int, job: str) -> bool:
        """Ask to have a stream destroyed that has this epoch; return whether that is done. Ask
        again with the same job until it is. Raises the job's error."""
        store = [int(StoreKind.STREAM), name]
        payload = frames.encode_control(job=job, store=store, epoch=epoch)
        reply = await self._bus.request(
            self._destroys, payload, CONTROL_TIMEOUT_SECONDS, self._tenant
        )
        return bool(frames.decode_control(reply).get("done"))

    async def _ask(self, writer: bytes, group: list[Any]) -> Outcome:
        if self._ended is not None:
            raise self._ended
        self._count += 1
        reply = f"{self._inbox}.{self._count}"
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting[reply] = answer
        try:
            await self._bus.publish(self._frames, frames.encode_request(writer, [group]), reply)
            return await answer
        finally:
            self._waiting.pop(reply, None)

    def _on_reply(self, message: BusMessage) -> None:
        waiting = self._waiting.get(message.subject)
        if waiting is None or waiting.done():
            return
        try:
            if message.no_responders:
                raise UnavailableError(reason="the server of this process takes no requests")
            [element] = frames.decode(message.payload)
            if element[1] != 0:
                raise error_from_wire(element[2], element[3])
            waiting.set_result(frames.decode_outcome(element[2]))
        except HoldfastError as error:
            waiting.set_exception(error)
        except (ValueError, TypeError, IndexError) as error:
            waiting.set_exception(MalformedFrameError(reason=f"a reply: {error}"))


def checked_result(outcome: Outcome, index: int) -> Any:
    """Return a result of an outcome that is a list. Raises the error that it may be."""
    result = outcome.results[index]
    if type(result) is list and result and type(result[0]) is str:
        raise error_from_wire(result[0], result[1])
    return result

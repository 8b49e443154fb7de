"""A write on its way: what `append_async` and `set_async` give."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from holdfast.client.link import Link
from holdfast.protocol.messages import Ack, Durability

if TYPE_CHECKING:
    import asyncio


class PendingAck:
    """Await it for the Ack, as often as you like; it raises what the plain call would have raised.

    Dropping it is harmless: the write goes on, and nobody hears what became of it.
    """

    __slots__ = ("_future", "_to_ack")

    def __init__(
        self, future: asyncio.Future[Any], to_ack: Callable[[Any, int, Durability], Ack]
    ) -> None:
        """`future` is one of `Link.submit`; `to_ack` makes the ack of an answer that is none yet."""
        self._future = future
        self._to_ack = to_ack

    def __await__(self) -> Generator[Any, None, Ack]:
        answer = yield from self._future
        return answer if type(answer) is Ack else self._to_ack(*Link.unwrap(answer))

    def done(self) -> bool:
        """Tell if it has been answered, one way or the other."""
        return self._future.done()

    def add_done_callback(self, callback: Callable[[PendingAck], object]) -> None:
        """Have `callback(self)` called soon after it is answered."""
        self._future.add_done_callback(lambda _: callback(self))

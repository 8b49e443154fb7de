"""A write in flight: the result of `append_async` and `set_async`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

from holdfast.client.wire.link import Link
from holdfast.protocol.messages import Ack, Durability


class PendingAck:
    """The future ack of `append_async` or `set_async`. Await it for the Ack, as often as you like;
    it raises what the plain call would have raised.

    Dropping it is harmless: the write continues, and nobody hears its result.
    """

    # It is itself the waiter of its operation (`frame.Waiter`). A caller that keeps a window full
    # finds most of its writes answered when it awaits them, so a future for each would be wasted.
    __slots__ = ("_answer", "_future", "_to_ack")

    def __init__(self, to_ack: Callable[[Any, int, Durability], Ack]) -> None:
        """`to_ack` makes an Ack of an answer that is not one yet."""
        self._answer: Any = None
        self._future: asyncio.Future[None] | None = None
        self._to_ack = to_ack

    def __await__(self) -> Generator[Any, None, Ack]:
        if self._answer is None:
            yield from self._as_future()
        answer = self._answer
        return answer if type(answer) is Ack else self._to_ack(*Link.unwrap(answer))

    def done(self) -> bool:
        """Return whether it has an answer, an ack or an error."""
        return self._answer is not None or (self._future is not None and self._future.done())

    def set_result(self, answer: Any) -> None:
        """The answer of a waiter (`frame.Waiter`); on the loop."""
        self._answer = answer
        if self._future is not None:
            self._future.set_result(None)

    def add_done_callback(self, callback: Callable[[PendingAck], object]) -> None:
        """Call `callback(self)` soon after the answer has arrived."""
        self._as_future().add_done_callback(lambda _: callback(self))

    def _as_future(self) -> asyncio.Future[None]:
        """Return a future that is done when this is. If a task that awaits it is cancelled, so
        is it."""
        future = self._future
        if future is None:
            future = self._future = asyncio.get_running_loop().create_future()
            if self._answer is not None:
                future.set_result(None)
        return future

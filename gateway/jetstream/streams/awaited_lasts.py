"""Last messages of subjects, for requests that are answered in tasks of their own.

They travel together, as direct gets do (`last_gets.py`): a client of nats-py without direct gets
asks for each key of a bucket so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from holdfast.client.handles.serving import ServingStream
from holdfast.client.handles.serving_wire import ServedMessage
from holdfast.gateway.jetstream.streams.last_gets import Answer, LastGets
from holdfast.protocol.errors import HoldfastError

#: Stands for a message with a large value, which its asker reads by itself.
_LARGE: Final = True
_Waiting = asyncio.Future[ServedMessage | bool | None]


class AwaitedLasts:
    """Those of one stream."""

    def __init__(self, store: ServingStream) -> None:
        self._store = store
        self._gets: LastGets[_Waiting] = LastGets(
            store, self._answered, self._large, self._failed
        )

    async def last(self, subject: str) -> ServedMessage | None:
        """Return the last message of a subject, which has no wildcard; None if there is none.
        Raises HoldfastError."""
        waiting: _Waiting = asyncio.get_running_loop().create_future()
        self._gets.ask(subject, waiting)
        found = await waiting
        return await self._store.last(subject) if isinstance(found, bool) else found

    def _answered(self, answers: Sequence[Answer[_Waiting]]) -> None:
        for waiting, message in answers:
            if not waiting.done():
                waiting.set_result(message)

    def _large(self, subject: str, waiting: _Waiting) -> None:
        if not waiting.done():
            waiting.set_result(_LARGE)

    def _failed(self, waiting: Sequence[_Waiting], error: HoldfastError) -> None:
        for each in waiting:
            if not each.done():
                each.set_exception(error)

"""Last messages of subjects, for requests that are answered in tasks of their own.

They travel together, as direct gets do (`last_gets.py`): a client of nats-py without direct gets
asks for each key of a bucket so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from holdfast.client.handles.serving import ServingStream
from holdfast.client.handles.serving_wire import ServedMessage
from holdfast.gateway.jetstream.streams.last_gets import Answer, LastGets
from holdfast.protocol.errors import HoldfastError

_Waiting = asyncio.Future[ServedMessage | None]


class AwaitedLasts:
    """Those of one stream."""

    def __init__(
        self, store: ServingStream, spawn: Callable[[Coroutine[Any, Any, None]], None]
    ) -> None:
        self._store = store
        self._spawn = spawn
        self._gets: LastGets[_Waiting] = LastGets(
            store, self._answered, self._large, self._failed
        )

    async def last(self, subject: str) -> ServedMessage | None:
        """Return the last message of a subject, which has no wildcard; None if there is none.
        Raises HoldfastError."""
        waiting: _Waiting = asyncio.get_running_loop().create_future()
        self._gets.ask(subject, waiting)
        return await waiting

    def _answered(self, answers: Sequence[Answer[_Waiting]]) -> None:
        for waiting, message in answers:
            if not waiting.done():
                waiting.set_result(message)

    def _large(self, subject: str, waiting: _Waiting) -> None:
        self._spawn(self._read(subject, waiting))

    async def _read(self, subject: str, waiting: _Waiting) -> None:
        try:
            message = await self._store.last(subject)
        except HoldfastError as error:
            self._failed([waiting], error)
        else:
            self._answered([(waiting, message)])

    def _failed(self, waiting: Sequence[_Waiting], error: HoldfastError) -> None:
        for each in waiting:
            if not each.done():
                each.set_exception(error)

"""Tells the application when the connection to NATS is lost, and when it is back.

Callbacks run in the event loop and must not block. What they raise goes to the loop's exception
handler and affects nothing else. After the client was closed none is called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast.client.wire.link import Link

#: What the application wants to have called.
ConnectionCallback = Callable[[], object]


class ConnectionEvents:
    """The callbacks of one client."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._number = 0
        self._on_disconnect: dict[int, ConnectionCallback] = {}
        self._on_reconnect: dict[int, ConnectionCallback] = {}
        link.bus.on_disconnect(lambda: self._call(self._on_disconnect))
        link.bus.on_reconnect(lambda: self._call(self._on_reconnect))

    def on_disconnect(self, callback: ConnectionCallback) -> Callable[[], None]:
        """Call `callback` each time the connection is lost. Return a function that ends this."""
        return self._register(self._on_disconnect, callback)

    def on_reconnect(self, callback: ConnectionCallback) -> Callable[[], None]:
        """Call `callback` each time the connection is back. Return a function that ends this."""
        return self._register(self._on_reconnect, callback)

    def _register(
        self, callbacks: dict[int, ConnectionCallback], callback: ConnectionCallback
    ) -> Callable[[], None]:
        self._number += 1
        number = self._number
        callbacks[number] = callback
        return lambda: callbacks.pop(number, None) and None

    def _call(self, callbacks: dict[int, ConnectionCallback]) -> None:
        for callback in list(callbacks.values()):
            if self._link.closed:
                return
            try:
                callback()
            except Exception as error:  # noqa: BLE001 (an error of the application)
                context: dict[str, Any] = {
                    "message": "a callback of a connection failed",
                    "exception": error,
                }
                self._loop.call_exception_handler(context)

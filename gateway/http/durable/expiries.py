"""When durable streams expire: a kv of the tenant whose keys are times and streams, in their order.

A stream that expires has a key before it exists, so none is forgotten. Uses do not move keys: the
time of a key is when to look, and a stream that was used meanwhile gets a later one. So nothing is
asked about streams that are not due, and a gateway that starts knows of all.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Final, NamedTuple

from holdfast.client.handles.kv import KV
from holdfast.protocol.errors import RequestError

logger = logging.getLogger("holdfast.gateway")

#: The kv. Streams have names of their own kind, so it takes none of theirs.
STORE: Final = "ds-expiries"
_DIGITS: Final = 15


class Due(NamedTuple):
    """A key that is due, and the stream that it names."""

    key: str
    store: str


class Expiries:
    """The times at which streams may have expired."""

    def __init__(self, kv: KV[bytes]) -> None:
        self._kv = kv

    async def note(self, store: str, at_ms: int) -> None:
        """Look at a stream then. Raises UnavailableError."""
        try:
            await self._kv.set(f"{at_ms:0{_DIGITS}d} {store}", b"")
        except RequestError as error:
            # A token for some streams alone. It expires all the same; nobody removes its store.
            logger.debug("gateway.expiry_not_noted store=%s code=%s", store, error.code)

    async def due(self, now_ms: int, most: int) -> list[Due]:
        """Return what is due, the earliest first. Raises HoldfastError."""
        found: list[Due] = []
        async with contextlib.aclosing(self._kv.keys()) as keys:  # type: ignore[type-var]
            async for key in keys:
                at, _, store = key.partition(" ")
                if at > f"{now_ms:0{_DIGITS}d}" or len(found) >= most:
                    break
                found.append(Due(key, store))
        return found

    async def forget(self, due: Due) -> None:
        """Remove a key. Raises HoldfastError."""
        await self._kv.delete(due.key)

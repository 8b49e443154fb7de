"""The output gate: nothing leaves a server before its fence was read, and said `open`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from holdfast.protocol.errors import FencedError, StorageError
from holdfast.shared_fs.disk.fence import FenceGate

logger = logging.getLogger("holdfast.persist")

#: Between two tries to read a fence file that cannot be read.
_RETRY_SECONDS: Final = 0.05

#: Returns if anything may leave now. Raises FencedError, StorageError.
ConfirmOpen = Callable[[], Awaitable[None]]


class OutputGate:
    """The gate of one incarnation, to what wants to leave."""

    def __init__(self, fence: FenceGate, confirm_open: ConfirmOpen | None = None) -> None:
        """`confirm_open` asks if the fence is open, where looking at it does not."""
        self._fence = fence
        self._confirm_open = confirm_open

    async def passed(self) -> None:
        """Return once the fence has been read and was open. Raises FencedError."""
        warned = False
        while True:
            try:
                if self._confirm_open is not None:
                    await self._confirm_open()
                self._fence.check()
                return
            except FencedError:
                raise
            except StorageError as error:
                # No descriptors, or an I/O error: nothing may leave, but it is all still good.
                if not warned:
                    logger.error("fence.unreadable reason=%s", error)
                    warned = True
                await asyncio.sleep(_RETRY_SECONDS)

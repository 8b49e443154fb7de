"""The output gate: nothing leaves a server before the server has read its fence as `open`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from holdfast.protocol.errors import FencedError, StorageError
from holdfast.protocol.serving.trouble import Trouble
from holdfast.shared_fs.disk.fence import FenceGate

logger = logging.getLogger("holdfast.persist")

#: The delay between attempts to read a fence file that is unreadable.
_RETRY_SECONDS: Final = 0.05

#: Passes only if output may leave now. Raises FencedError, StorageError.
ConfirmOpen = Callable[[], Awaitable[None]]


class OutputGate:
    """The gate of one incarnation."""

    def __init__(self, fence: FenceGate, confirm_open: ConfirmOpen | None = None) -> None:
        """`confirm_open` asks whether the fence is open, where reading it locally is not enough."""
        self._fence = fence
        self._confirm_open = confirm_open
        self._unreadable = Trouble(logger, "fence.unreadable", logging.ERROR)

    async def passed(self) -> None:
        """Return once the fence was read as open. Raises FencedError."""
        while True:
            try:
                if self._confirm_open is not None:
                    await self._confirm_open()
                self._fence.check()
            except FencedError:
                raise
            except StorageError as error:
                # No descriptors, or an I/O error. Nothing may leave, but nothing is lost either.
                self._unreadable.note("reason=%s", error)
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                self._unreadable.over()
                return

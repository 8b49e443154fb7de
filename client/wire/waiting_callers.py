"""Callers that wait for room, first come, first served, while too much is unanswered."""

from __future__ import annotations

import asyncio
from collections import deque

from holdfast.client.wire.coalescer import Coalescer
from holdfast.protocol.errors import BusyError, OperationTimeoutError


class WaitingCallers:
    """The waiting callers of one link."""

    def __init__(self, coalescer: Coalescer) -> None:
        #: The callers in order of arrival; truthy while there are any.
        self.line: deque[asyncio.Future[None]] = deque()
        self._coalescer = coalescer
        self._loop = asyncio.get_running_loop()

    async def wait(self, timeout_seconds: float) -> None:
        """Return when it is this caller's turn. Raises OperationTimeoutError."""
        if not self.line and self._coalescer.room > 0:
            return
        turn: asyncio.Future[None] = self._loop.create_future()
        self.line.append(turn)
        try:
            async with asyncio.timeout(timeout_seconds):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                # It was admitted in the turn of the loop in which it gave up. If nothing is in
                # flight, nothing else would ever admit the next one.
                self._admit_next()
            elif turn in self.line:
                self.line.remove(turn)
            if isinstance(error, TimeoutError):
                reason = str(BusyError(what="the client's queue"))
                raise OperationTimeoutError(
                    timeout_seconds=timeout_seconds, reason=reason
                ) from None
            raise

    def admit(self) -> None:
        """Admit as many callers as there is room for."""
        room = self._coalescer.room
        while room > 0 and self._admit_next():
            room -= 1

    def admit_all(self) -> None:
        """Admit all callers, because the link is closing."""
        while self._admit_next():
            pass

    def _admit_next(self) -> bool:
        """Admit the first caller that still waits; return whether there was one."""
        while self.line:
            turn = self.line.popleft()
            if not turn.done():
                turn.set_result(None)
                return True
        return False

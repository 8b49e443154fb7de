"""Seals of dead logs, by which new owners show that they read all of them: see `seal.py`.

All logs of fenced incarnations are sealed at once, in the background. A request that comes while
that is under way gets the next answer, which is made wholly after the request: a server asks once
it knows that somebody was fenced, and the answer must be about that too.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

from holdfast.coordinator.answering.replies import Replies
from holdfast.coordinator.answering.transaction import Reply
from holdfast.coordinator.life import Life
from holdfast.coordinator.state.state_file import StateFile
from holdfast.protocol.errors import BusyError, StorageError

logger = logging.getLogger("holdfast.coordinator")

#: Requests that wait for the next answer. A server has one in flight.
_MAX_REQUESTS: Final = 1024


class Seals:
    """The seals that one active coordinator puts."""

    def __init__(self, life: Life, state: StateFile, replies: Replies) -> None:
        self._background_tasks = life.background_tasks
        self._fences = life.storage.fences
        self._state = state
        self._replies = replies
        self._waiting: list[str] = []
        self._is_sealing = False
        #: What earlier coordinators recorded as ended, until it was looked for by name.
        self._earlier: Collection[tuple[str, str]] = ()

    def take_over(self, ended: Collection[tuple[str, str]]) -> None:
        """Look for these incarnations too, whatever this host lists."""
        self._earlier = ended

    def ask(self, reply_to: str) -> None:
        """Answer `reply_to` once all logs of fenced incarnations are sealed."""
        if len(self._waiting) >= _MAX_REQUESTS:
            self._replies.refuse(reply_to, BusyError(what="the queue of seals"))
            return
        self._waiting.append(reply_to)
        if not self._is_sealing:
            self._is_sealing = True
            self._background_tasks.start("seal", self._answer())

    async def _answer(self) -> None:
        try:
            while asked := self._waiting:
                self._waiting = []
                reply = await self._seal()
                for reply_to in asked:
                    self._replies.add(reply_to, reply)
        finally:
            self._is_sealing = False

    async def _seal(self) -> Reply:
        """Seal the logs; return the reply. Raises DeposedError."""
        try:
            sealed = await self._background_tasks.blocking(self._seal_now)
        except StorageError as error:
            logger.warning("coordinator.seal_failed reason=%s", error)
            return error
        logs = {} if sealed is None else {"logs": sealed}
        return {"term": self._state.term, **logs}

    def _seal_now(self) -> list[tuple[str, str]] | None:
        self._state.check_term()
        sealed = self._fences.seal(self._earlier)
        self._earlier = ()
        return sealed

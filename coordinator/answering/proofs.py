"""Numbers beside the fences of servers, by which those show that they read fresh: see `proof.py`.

Each number is written in the background, so that a slow disk holds up nobody else. The numbers of
one incarnation are written one after the other. A request that is sent again while its number is
being written gets the next answer.
"""

from __future__ import annotations

import logging
from typing import Final

from holdfast.coordinator.answering.replies import Replies
from holdfast.coordinator.answering.requests import Prove
from holdfast.coordinator.answering.transaction import Reply
from holdfast.coordinator.life import Life
from holdfast.coordinator.state.state_file import StateFile
from holdfast.protocol.errors import (
    BusyError,
    StorageError,
    UnavailableError,
)
from holdfast.protocol.serving.trouble import Trouble
from holdfast.shared_fs.disk.proof import ProofNumber

logger = logging.getLogger("holdfast.coordinator")

#: Incarnations whose numbers are being written, and requests of each that wait for the next turn.
#: A server has one request in flight.
_MAX_INCARNATIONS: Final = 1024
_MAX_REQUESTS: Final = 16

_Key = tuple[str, str]


class Proofs:
    """The numbers that one active coordinator writes."""

    def __init__(self, life: Life, state: StateFile, replies: Replies) -> None:
        self._background_tasks = life.background_tasks
        self._fences = life.storage.fences
        self._state = state
        self._replies = replies
        self._failing = Trouble(logger, "coordinator.proof_failed")
        #: The requests that wait, by incarnation, as long as a task writes for it.
        self._waiting: dict[_Key, list[tuple[int, str]]] = {}

    def ask(self, request: Prove, reply_to: str) -> None:
        """Answer `reply_to` once the number is durable."""
        key = request.server, request.incarnation
        waiting = self._waiting.get(key)
        if waiting is None and len(self._waiting) < _MAX_INCARNATIONS:
            self._waiting[key] = [(request.number, reply_to)]
            self._background_tasks.start("prove", self._answer(key))
        elif waiting is not None and len(waiting) < _MAX_REQUESTS:
            waiting.append((request.number, reply_to))
        else:
            self._replies.refuse(reply_to, BusyError(what="the queue of proofs"))

    async def _answer(self, key: _Key) -> None:
        try:
            while asked := self._waiting[key]:
                self._waiting[key] = []
                reply = await self._write(key, max(number for number, _ in asked))
                for _, reply_to in asked:
                    self._replies.add(reply_to, reply)
        finally:
            del self._waiting[key]

    async def _write(self, key: _Key, number: int) -> Reply:
        """Write a number; return the reply. Raises DeposedError."""
        server, incarnation = key
        try:
            is_written = await self._background_tasks.blocking(
                self._write_now, server, incarnation, number
            )
        except FileNotFoundError:
            reason = f"the coordinator does not see incarnation {incarnation} of server {server!r}"
            return UnavailableError(reason=reason)
        except StorageError as error:
            self._failing.note(
                "server=%s incarnation=%s reason=%s", server, incarnation, error, of=server
            )
            return error
        self._failing.over(server)
        said = {"number": number} if is_written else {}
        return {"term": self._state.term, **said}

    def _write_now(self, server: str, incarnation: str, number: int) -> bool:
        self._state.check_term()
        return self._fences.write_proof(server, incarnation, ProofNumber(self._state.term, number))

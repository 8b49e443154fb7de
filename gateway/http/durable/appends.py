"""The appends to one durable stream, in turns: what arrives while a batch is under way is the next.

A batch rests on nothing that is not stored: it is decided by the stream as the store has it, and
the owner refuses it if another gateway was faster, or has raised the serving epoch to delete the
stream. Then all of it is decided anew. A refusal, or a repeated request, is told only if a batch of
the same turn was stored, or if the stream was loaded after the request came.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.client.handles.serving import ServingStream
from holdfast.client.handles.serving_wire import Packer
from holdfast.gateway.http.durable.known_stream import (
    MAX_MESSAGES,
    AppendAnswer,
    KnownStream,
    Told,
    is_json,
)
from holdfast.gateway.http.durable.requests import AppendRequest
from holdfast.gateway.http.durable.stream_record import PRODUCERS_CURSOR, STREAM_CURSOR
from holdfast.gateway.http.problems import ProblemError
from holdfast.protocol.errors import (
    BusyError,
    DeposedWriterError,
    HoldfastError,
    RequestError,
    UnavailableError,
    WrongLastSeqError,
)

logger = logging.getLogger("holdfast.gateway")

#: Appends that collide with those of other gateways are tried so often.
_TRIES: Final = 50
#: So many refusals by the serving epoch, with pauses, mean that whoever raised it is gone.
_DEPOSED_TRIES: Final = 6
_PAUSE_SECONDS: Final = 0.05
#: What one batch takes: it must fit in one frame, whose limit is near the one of a single body.
_BATCH_BYTES: Final = 600_000
_BATCH_MESSAGES: Final = MAX_MESSAGES
#: What may wait for one stream.
_MAX_WAITING_BYTES: Final = 32 * 1024 * 1024


@dataclass(slots=True)
class Waiting:
    """An append that waits for its turn."""

    request: AppendRequest
    body: bytes
    done: asyncio.Future[AppendAnswer]

    def answer(self, outcome: AppendAnswer | Exception) -> None:
        """Tell whoever still waits."""
        if self.done.done():
            return
        if isinstance(outcome, Exception):
            self.done.set_exception(outcome)
        else:
            self.done.set_result(outcome)


class Appends:
    """The appends to one stream.

    `load` returns the stream as the store has it now, or raises ProblemError. `use` returns an
    operation that records a use, or None. `write_again` makes the stream writable again after
    somebody has raised its serving epoch.
    """

    def __init__(
        self,
        store: ServingStream,
        load: Callable[[], Awaitable[KnownStream]],
        is_over: Callable[[KnownStream], bool],
        use: Callable[[KnownStream, Packer], list[Any] | None],
        write_again: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._load = load
        self._is_over = is_over
        self._use = use
        self._write_again = write_again
        self._known: KnownStream | None = None
        self._waiting: deque[Waiting] = deque()
        self._waiting_bytes = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether none is under way."""
        return self._task is None

    def forget(self) -> None:
        """Load the stream again when it is next written."""
        self._known = None

    async def append(self, request: AppendRequest, body: bytes) -> AppendAnswer:
        """Do what a POST asks for. Raises ProblemError, HoldfastError."""
        if self._waiting_bytes + len(body) > _MAX_WAITING_BYTES:
            raise BusyError(what="this stream: too many appends wait")
        waiting = Waiting(request, body, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._waiting_bytes += len(body)
        if self._task is None:
            self._task = asyncio.create_task(self._take_turns())
        return await waiting.done

    async def _take_turns(self) -> None:
        turn: Sequence[Waiting] = ()
        try:
            while self._waiting:
                turn = self._next_turn()
                try:
                    await self._store_all(turn)
                except (ProblemError, HoldfastError) as error:
                    _refuse(turn, error)
                except Exception:
                    logger.exception("gateway.request_failed")
                    self._known = None
                    _refuse(turn, ProblemError(500, "internal_error", "a bug of the gateway"))
        finally:
            # Only a gateway that ends is cancelled here.
            self._task = None
            _refuse([*turn, *self._waiting], UnavailableError(reason="the gateway ends"))
            self._waiting.clear()
            self._waiting_bytes = 0

    def _next_turn(self) -> list[Waiting]:
        turn: list[Waiting] = []
        size_bytes = messages = 0
        while self._waiting:
            each = self._waiting[0]
            size_bytes += len(each.body)
            messages += self._most_messages(each)
            if turn and (size_bytes > _BATCH_BYTES or messages > _BATCH_MESSAGES):
                break
            self._waiting.popleft()
            self._waiting_bytes -= len(each.body)
            if not each.done.done():
                turn.append(each)
        return turn

    def _most_messages(self, waiting: Waiting) -> int:
        """Return how many messages a body may have: elements of JSON take two bytes each."""
        known = self._known
        if known is not None and not is_json(known.config.content_type):
            return 2
        return len(waiting.body) // 2 + 2

    async def _store_all(self, turn: Sequence[Waiting]) -> None:
        """Do all of a turn. Raises ProblemError, HoldfastError."""
        deposed, is_fresh = 0, False
        for _ in range(_TRIES):
            known, last = self._known, 0
            if known is None or self._is_over(known):
                self._known = None
                known, is_fresh = await self._load(), True
                self._known = known
            last = known.last_seq
            outcomes, operations = self._planned(known, turn)
            try:
                if operations:
                    operations[0][_EXPECTED] = last
                    await self._store.batch(operations)
                elif not is_fresh:
                    self._known = None
                    continue
            except WrongLastSeqError:
                self._known = None
                continue
            except DeposedWriterError:
                self._known = None
                deposed += 1
                if deposed > _DEPOSED_TRIES:
                    await self._write_again()
                elif deposed > 1:
                    await asyncio.sleep(_PAUSE_SECONDS * deposed)
                continue
            except RequestError:
                # It was refused as a whole: only the one that is wrong shall be.
                self._known = None
                if len(turn) == 1:
                    raise
                await self._store_each(turn)
                return
            except BaseException:
                self._known = None
                raise
            for each, outcome in zip(turn, outcomes, strict=True):
                each.answer(outcome)
            return
        raise UnavailableError(reason="other gateways write to this stream all the time")

    async def _store_each(self, turn: Sequence[Waiting]) -> None:
        for each in turn:
            try:
                await self._store_all([each])
            except (ProblemError, HoldfastError) as error:
                each.answer(error)

    def _planned(
        self, known: KnownStream, turn: Sequence[Waiting]
    ) -> tuple[list[AppendAnswer | Exception], list[list[Any]]]:
        """Return what each append comes to, and the operations of all."""
        packer = Packer(known.epoch)
        outcomes: list[AppendAnswer | Exception] = []
        operations: list[list[Any]] = []
        rows: dict[int, bytes] = {}
        state = known.state
        for each in turn:
            try:
                plan = known.plan(each.request, each.body)
            except ProblemError as error:
                outcomes.append(error)
                continue
            outcomes.append(plan.answer)
            if plan.answer.told is Told.STORED:
                operations += [message.operation(known.epoch) for message in plan.messages]
                rows.update(plan.producer_rows)
        if not operations:
            return outcomes, []
        if known.state is not state:
            operations.append(packer.cursor_operation(STREAM_CURSOR, state=known.state.to_bytes()))
        if rows:
            operations.append(
                packer.cursor_operation(
                    PRODUCERS_CURSOR, config=b"", state=b"", rows=list(rows.items())
                )
            )
        used = self._use(known, packer)
        return outcomes, operations if used is None else [*operations, used]


#: Where `DurableMessage.operation` has the expected last seq.
_EXPECTED: Final = 4


def _refuse(turn: Sequence[Waiting], error: Exception) -> None:
    for each in turn:
        each.answer(error)

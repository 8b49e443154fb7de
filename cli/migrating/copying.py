"""Copies streams: each from its source into a store, to the end, verified, and then served.

One stream after the other; a stream that fails does not stop the others. Every message is read back
and compared as it is stored, and at the end both streams must tell the same of themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.cli.migrating.plan import ConsumerPlan, SourceState, StreamPlan, plan_consumer
from holdfast.cli.migrating.source import JetStreamSource, SourceError
from holdfast.cli.migrating.target import MigrationConflictError, MigrationTarget, StreamCopy
from holdfast.protocol.errors import HoldfastError

#: How often a stream that grows meanwhile is followed to its end.
_MAX_ROUNDS: Final = 10

#: Told of the messages that were copied: the stream, and how many more.
Progress = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class Copied:
    """What became of a stream. With an `error` it is not complete, and nobody serves it."""

    plan: StreamPlan
    #: Messages that this run has copied.
    messages: int = 0
    consumers: int = 0
    #: Messages came to the source while it was copied.
    is_moving: bool = False
    is_served: bool = False
    error: HoldfastError | None = None


class Copier:
    """Copies streams from `source` to `target`. With `hold` they are not served yet, and another
    run can bring them up to date."""

    def __init__(
        self, source: JetStreamSource, target: MigrationTarget, *, hold: bool, progress: Progress
    ) -> None:
        self._source = source
        self._target = target
        self._hold = hold
        self._progress = progress

    async def copy(self, plan: StreamPlan) -> Copied:
        """Copy one stream, as far as that is possible."""
        try:
            return await self._copy(plan)
        except HoldfastError as error:
            return Copied(plan, error=error)

    async def _copy(self, plan: StreamPlan) -> Copied:
        reason = plan.refusal or self._target.reason_against(plan)
        if reason:
            raise MigrationConflictError(stream=plan.name, reason=reason)
        copy = await self._target.begun(plan)
        seq = await copy.begin()
        state, copied, rounds = plan.state, 0, 0
        while True:
            copied += await self._copy_to(copy, seq, state.last_seq)
            seq, rounds = max(seq, state.last_seq + 1), rounds + 1
            info = await self._source.stream(plan.name, deleted=True)
            now = _state_of(plan.name, info)
            if now.last_seq == state.last_seq or rounds == _MAX_ROUNDS:
                break
            state = now
        await copy.reach(state.last_seq)
        await copy.remove(now.first_seq, _deleted(info))
        is_moving = rounds > 1
        if now.last_seq == state.last_seq:
            await self._check_state(copy, now)
        consumers = await self._consumers(plan.name)
        if self._hold:
            return Copied(plan, copied, len(consumers), is_moving)
        await copy.complete(consumers)
        await self._target.finish(copy)
        return Copied(plan, copied, len(consumers), is_moving, is_served=True)

    async def _copy_to(self, copy: StreamCopy, start_seq: int, end_seq: int) -> int:
        name, copied = copy.plan.name, 0
        async for messages in self._source.messages(name, start_seq, end_seq):
            await copy.put(messages)
            copied += len(messages)
            self._progress(name, len(messages))
        return copied

    async def _check_state(self, copy: StreamCopy, state: SourceState) -> None:
        head = await copy.store.head()
        ours = (head.count, head.last_seq)
        if ours != (state.messages, state.last_seq):
            reason = (
                f"it has {head.count} messages up to {head.last_seq}, "
                f"and its source {state.messages} up to {state.last_seq}"
            )
            raise MigrationConflictError(stream=copy.plan.name, reason=reason)

    async def _consumers(self, stream: str) -> Sequence[ConsumerPlan]:
        try:
            found = [plan_consumer(info) for info in await self._source.consumers(stream)]
        except ValueError as error:
            raise SourceError(source=stream, reason=str(error)) from error
        return [each for each in found if each is not None]


def _state_of(name: str, info: object) -> SourceState:
    try:
        return SourceState.of(info)  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError) as error:
        raise SourceError(source=name, reason=f"its state: {error!r:.200}") from error


def _deleted(info: object) -> list[int]:
    deleted = info["state"].get("deleted") or []  # type: ignore[index]
    return [seq for seq in deleted if type(seq) is int and seq > 0]

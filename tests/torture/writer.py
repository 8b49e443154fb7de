"""A writer: draws operations, carries them out with the real client, and records the answers."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Final

from holdfast.client import Client
from holdfast.protocol.errors import HoldfastError, RequestError, StaleWriteError
from holdfast.protocol.messages import Ack, Deleted, Entry, Message
from torture.history import Operation, OperationKind, Outcome, Place, Recorder, name_of, value_of
from torture.workload import Workload, is_stream, name_in_cluster

_CONCURRENT_ACTORS: Final = 16
#: How often an application tries an append with a `msg_id` again after an error.
_MSG_ID_TRIES: Final = 3
#: Errors by which nothing was sent, as `Stream` and `KV` promise.
_NEVER_SENT: Final = frozenset({"no_server", "no_coordinator", "connection_failed"})


class Writer:
    """One process's actors, each of which waits for an answer before it goes on."""

    def __init__(
        self, name: str, seed: int, client: Client, recorder: Recorder, operations_per_second: float
    ) -> None:
        self._client = client
        self._recorder = recorder
        self._rng = random.Random(seed)
        self._workload = Workload(name, self._rng)
        self._pause_seconds = _CONCURRENT_ACTORS / operations_per_second

    async def run(self, finish: asyncio.Event) -> None:
        """Write until `finish`, and until all that was begun is answered."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_CONCURRENT_ACTORS):
                tasks.create_task(self._act(finish))

    async def _act(self, finish: asyncio.Event) -> None:
        while not finish.is_set():
            await perform(
                self._client,
                self._workload.draw(time.monotonic()),
                self._workload.timeout_seconds(),
                self._recorder,
                self._workload,
            )
            await asyncio.sleep(self._rng.expovariate(1 / self._pause_seconds))


async def perform(
    client: Client,
    operation: Operation,
    timeout_seconds: float | None,
    recorder: Recorder,
    workload: Workload | None = None,
) -> None:
    """Carry out one operation; record that it began and how it ended."""
    recorder.write(
        "invoke",
        operation.invoked_at,
        operation.id,
        store=operation.store,
        kind=operation.kind,
        values=operation.values,
        targets=operation.targets,
        end_seq=operation.end_seq,
        expected_revision=operation.expected_revision,
        expected_last_seq=operation.expected_last_seq,
        label=operation.label,
    )
    try:
        call = _call_stream if is_stream(operation.store) else _call_kv
        answer = await call(client, operation, timeout_seconds)
    except HoldfastError as error:
        definite = isinstance(error, RequestError) and not isinstance(error, StaleWriteError)
        recorder.write(
            "error",
            time.monotonic(),
            operation.id,
            code=error.code,
            definite=definite or error.code in _NEVER_SENT,
            text=str(error),
        )
        return
    operation.outcome = Outcome.OK
    operation.returned_at = time.monotonic()
    _take(operation, answer)
    found = operation.found
    recorder.write(
        "ok",
        operation.returned_at,
        operation.id,
        places=operation.places,
        count=operation.count or None,
        revision=operation.revision or None,
        found=None if found is None else (found[0], *found[1]),
    )
    if workload is not None:
        workload.learn(operation)


_Answer = Ack | list[Ack] | Deleted | Message | Entry | None


async def _call_stream(
    client: Client, operation: Operation, timeout_seconds: float | None
) -> _Answer:
    stream = client.stream(name_in_cluster(operation.store))
    values = [value_of(name) for name in operation.values]
    seqs = [target for target in operation.targets if isinstance(target, int)]
    match operation.kind:
        case OperationKind.APPEND if len(values) > 1:
            return await stream.append_many(values, timeout_seconds=timeout_seconds)
        case OperationKind.APPEND if "msg_id" in operation.label:
            return await _append_until_stored(client, operation, values[0], timeout_seconds)
        case OperationKind.APPEND:
            return await stream.append(
                values[0],
                expected_last_seq=operation.expected_last_seq,
                timeout_seconds=timeout_seconds,
            )
        case OperationKind.SET:
            return await stream.set(seqs[0], values[0], timeout_seconds=timeout_seconds)
        case OperationKind.DELETE:
            return await stream.delete(seqs, timeout_seconds=timeout_seconds)
        case OperationKind.TRIM:
            end_seq = operation.end_seq
            return await stream.delete_all(end_seq=end_seq, timeout_seconds=timeout_seconds)
        case OperationKind.GET:
            return await stream.get(seqs[0], timeout_seconds=timeout_seconds)


async def _append_until_stored(
    client: Client, operation: Operation, value: bytes, timeout_seconds: float | None
) -> Ack:
    """Append as an application does that knows its message by an id of its own."""
    stream = client.stream(name_in_cluster(operation.store))
    for _ in range(_MSG_ID_TRIES - 1):
        try:
            return await stream.append(value, msg_id=operation.id, timeout_seconds=timeout_seconds)
        except HoldfastError as error:
            if not error.retryable:
                raise
    return await stream.append(value, msg_id=operation.id)


async def _call_kv(client: Client, operation: Operation, timeout_seconds: float | None) -> _Answer:
    kv = client.kv(name_in_cluster(operation.store))
    values = [value_of(name) for name in operation.values]
    keys = [str(target) for target in operation.targets]
    match operation.kind:
        case OperationKind.SET if len(values) > 1:
            pairs = zip(keys, values, strict=True)
            return await kv.set_many(pairs, timeout_seconds=timeout_seconds)
        case OperationKind.SET:
            expected = operation.expected_revision
            return await kv.set(
                keys[0], values[0], expected_revision=expected, timeout_seconds=timeout_seconds
            )
        case OperationKind.DELETE:
            expected = operation.expected_revision
            return await kv.delete(
                keys[0], expected_revision=expected, timeout_seconds=timeout_seconds
            )
        case OperationKind.TRIM:
            return await kv.delete_all(timeout_seconds=timeout_seconds)
        case OperationKind.GET:
            return await kv.get(keys[0], timeout_seconds=timeout_seconds)
        case OperationKind.APPEND:
            raise AssertionError("a kv has no append")


def _take(operation: Operation, answer: _Answer) -> None:
    """Put what a call returned into the operation."""
    match answer:
        case Ack():
            _place(operation, [answer])
        case list():
            _place(operation, answer)
        case Deleted():
            operation.count, operation.revision = answer.count, answer.revision
        case Message():
            operation.found = (name_of(answer.value), Place(answer.seq, answer.revision))
        case Entry():
            operation.found = (name_of(answer.value), Place(answer.key, answer.revision))


def _place(operation: Operation, acks: list[Ack]) -> None:
    if is_stream(operation.store):
        operation.places = tuple(Place(ack.seq or 0, ack.revision) for ack in acks)
    else:
        operation.places = tuple(
            Place(target, ack.revision) for target, ack in zip(operation.targets, acks, strict=True)
        )

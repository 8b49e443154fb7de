"""A writer: draws operations, carries them out with the real client, and records the answers."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Final

from holdfast.client import Client
from holdfast.protocol.errors import HoldfastError, RequestError, StaleWriteError
from holdfast.protocol.messages import Ack
from tests.support.checking.calls import Answer, note_answer
from tests.support.checking.history import Operation, Outcome, Store
from tests.torture.recording import Recorder, name_of, subject_of, value_of
from tests.torture.workload import Workload, is_stream

_CONCURRENT_ACTORS: Final = 16
#: How often an application tries an append with a `msg_id` again after an error.
_MSG_ID_TRIES: Final = 3
#: Errors by which nothing was sent, as `Stream` and `KV` promise.
_NEVER_SENT: Final = frozenset({"no_server", "no_coordinator", "connection_failed"})


class Writer:
    """One process's actors, each of which waits for an answer before it goes on."""

    def __init__(
        self,
        name: str,
        seed: int,
        client: Client,
        recorder: Recorder,
        operations_per_second: float,
        stores: Sequence[Store | None] = (None,) * _CONCURRENT_ACTORS,
    ) -> None:
        """There is an actor for each of `stores`, which writes to nothing else; None is any store.
        Actors that keep to one store go on where they can while others wait."""
        self._client = client
        self._recorder = recorder
        self._rng = random.Random(seed)
        self._workload = Workload(name, self._rng)
        self._stores = stores
        self._pause_seconds = len(stores) / operations_per_second

    async def run(self, finish: asyncio.Event) -> None:
        """Write until `finish`, and until all that was begun is answered."""
        async with asyncio.TaskGroup() as tasks:
            for store in self._stores:
                tasks.create_task(self._act(finish, store))

    async def _act(self, finish: asyncio.Event, store: Store | None) -> None:
        while not finish.is_set():
            await perform(
                self._client,
                self._workload.draw(time.monotonic(), store),
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
    recorder.invoke(operation)
    try:
        call = _call_stream if is_stream(operation.store) else _call_kv
        answer = await call(client, operation, timeout_seconds)
    except HoldfastError as error:
        recorder.write(
            "error",
            time.monotonic(),
            operation.client,
            error=f"{error.code}: {error}",
            definite=_is_definite(error),
        )
        return
    operation.outcome = Outcome.OK
    operation.returned = time.monotonic()
    note_answer(operation, answer, name_of)
    recorder.ok(operation)
    if workload is not None:
        workload.learn(operation)


async def _call_stream(
    client: Client, operation: Operation, timeout_seconds: float | None
) -> Answer:
    stream = client.stream(operation.store[1])
    values = [value_of(name) for name in operation.values]
    seqs = [key for key in operation.keys if isinstance(key, int)]
    match operation.action:
        case "append_many":
            return await stream.append_many(values, timeout_seconds=timeout_seconds)
        case "append" if "msg_id" in operation.label:
            return await _append_until_stored(client, operation, values[0], timeout_seconds)
        case "append":
            return await stream.append(
                values[0],
                expected_last_seq=operation.expected,
                timeout_seconds=timeout_seconds,
                subject=subject_of(operation.values[0]),
            )
        case "set":
            return await stream.set(seqs[0], values[0], timeout_seconds=timeout_seconds)
        case "delete":
            return await stream.delete(seqs, timeout_seconds=timeout_seconds)
        case "delete_all":
            return await stream.delete_all(end_seq=operation.end, timeout_seconds=timeout_seconds)
    assert operation.action == "get", operation
    return await stream.get(seqs[0], timeout_seconds=timeout_seconds)


async def _append_until_stored(
    client: Client, operation: Operation, value: bytes, timeout_seconds: float | None
) -> Ack:
    """Append as an application does that knows its message by an id of its own.

    If it gives up, it raises an error of a try that may have stored the message, if there was one:
    a later try that was never sent does not undo it.
    """
    stream = client.stream(operation.store[1])
    unknown: HoldfastError | None = None
    for timeout in (*[timeout_seconds] * (_MSG_ID_TRIES - 1), None):
        try:
            return await stream.append(value, msg_id=operation.client, timeout_seconds=timeout)
        except HoldfastError as error:
            last = error
            if not _is_definite(error):
                unknown = error
            if not error.retryable:
                break
    raise unknown or last


def _is_definite(error: HoldfastError) -> bool:
    """Tell whether an operation that ended in this error was not carried out, and never will be."""
    is_refusal = isinstance(error, RequestError) and not isinstance(error, StaleWriteError)
    return is_refusal or error.code in _NEVER_SENT


async def _call_kv(client: Client, operation: Operation, timeout_seconds: float | None) -> Answer:
    kv = client.kv(operation.store[1])
    values = [value_of(name) for name in operation.values]
    keys = [str(key) for key in operation.keys]
    match operation.action:
        case "set" if len(values) > 1:
            pairs = zip(keys, values, strict=True)
            return await kv.set_many(pairs, timeout_seconds=timeout_seconds)
        case "set":
            expected = operation.expected
            return await kv.set(
                keys[0], values[0], expected_revision=expected, timeout_seconds=timeout_seconds
            )
        case "delete":
            expected = operation.expected
            return await kv.delete(
                keys[0], expected_revision=expected, timeout_seconds=timeout_seconds
            )
        case "delete_all":
            return await kv.delete_all(timeout_seconds=timeout_seconds)
    assert operation.action == "get", operation
    return await kv.get(keys[0], timeout_seconds=timeout_seconds)

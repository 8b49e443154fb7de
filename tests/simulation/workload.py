"""What applications do in a run: writers, readers and followers that contend for a few stores.

Values are unique: the client's name and a number. Every call is noted in the history when it is made
and when it has ended, with what it said.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

from history import Following, History, Key, Operation, Outcome, Store, change_of
from holdfast.client.connection import Client
from holdfast.protocol.errors import (
    ConnectionFailedError,
    HoldfastError,
    NoCoordinatorError,
    NoServerError,
    RequestError,
)
from holdfast.protocol.messages import Ack, Change, Deleted
from holdfast.protocol.names import StoreKind
from simulated_cluster import ClientNode, Simulation

STREAMS: Final = ("log", "chat.7", "edits")
KVS: Final = ("settings", "jobs")
KEYS: Final = ("a", "a.b", "b", "b.1", "c")
PREFIXES: Final = ("", "a", "b")
STORES: Final[tuple[Store, ...]] = (
    *((int(StoreKind.STREAM), name) for name in STREAMS),
    *((int(StoreKind.KV), name) for name in KVS),
)
#: Errors after which nothing was, or ever will be, stored.
_DEFINITE: Final = (RequestError, NoCoordinatorError, NoServerError, ConnectionFailedError)
#: What a follower waits for in the end, in each store; the key has no prefix but the empty one.
LAST_VALUE: Final = b"the end"


class Application:
    """One client's worth of work."""

    def __init__(self, simulation: Simulation, node: ClientNode, client: Client) -> None:
        self._history: History = simulation.history
        self._trace = simulation.trace
        self._client = client
        self._name = node.name
        self._chance = simulation.chance(f"work {node.name}")
        self._number = 0
        self._last_seqs: dict[str, int] = {}
        self._revisions: dict[tuple[str, str], int] = {}
        self.following: list[Follow] = []

    def _value(self) -> bytes:
        self._number += 1
        value = f"{self._name}.{self._number}"
        if self._chance.random() < 0.1:
            value += "." + "x" * self._chance.randrange(3000)
        return value.encode()

    async def work(self, until: float) -> None:
        """Do one thing after the other until the time `until`."""
        loop, chance = asyncio.get_running_loop(), self._chance
        pace = chance.choice((0.02, 0.1, 0.3))
        while loop.time() < until:
            await asyncio.sleep(chance.expovariate(1 / pace))
            timeout_seconds = chance.choice((0.3, 1.0, 3.0, 8.0))
            if chance.random() < 0.6:
                await self._on_stream(chance.choice(STREAMS), timeout_seconds)
            else:
                await self._on_kv(chance.choice(KVS), timeout_seconds)

    async def follow(self, until: float, make: Callable[[], Follow]) -> None:
        """Follow stores, one after the other, until `until`; the last one stays."""
        loop, chance = asyncio.get_running_loop(), self._chance
        while True:
            follow = make()
            self.following.append(follow)
            running = asyncio.ensure_future(follow.run(self._client))
            patience = chance.choice((2.0, 10.0, 1000.0))
            await asyncio.wait([running], timeout=max(0.0, min(patience, until - loop.time())))
            if loop.time() >= until:
                await running
                return
            running.cancel()
            await asyncio.wait([running])

    # --- operations --------------------------------------------------------------------------
    async def _on_stream(self, name: str, timeout_seconds: float) -> None:
        chance = self._chance
        stream = self._client.stream(name)
        store: Store = (int(StoreKind.STREAM), name)
        last_seq = self._last_seqs.get(name, 0)
        seq = chance.randint(max(1, last_seq - 20), last_seq + 1)
        dice = chance.random()
        if dice < 0.45:
            await self._append(name, timeout_seconds)
        elif dice < 0.55:
            values = tuple(self._value() for _ in range(chance.randint(1, 5)))
            operation = self._invoke(store, "append_many", values=values)
            await self._write(
                operation, stream.append_many(values, timeout_seconds=timeout_seconds)
            )
        elif dice < 0.63:
            value = self._value()
            operation = self._invoke(store, "set", keys=(seq,), values=(value,))
            await self._write(operation, stream.set(seq, value, timeout_seconds=timeout_seconds))
        elif dice < 0.70:
            operation = self._invoke(store, "delete", keys=(seq,))
            await self._delete(operation, stream.delete(seq, timeout_seconds=timeout_seconds))
        elif dice < 0.72:
            end = seq if chance.random() < 0.8 else None
            operation = self._invoke(store, "delete_all", end=end)
            call = stream.delete_all(end_seq=end, timeout_seconds=timeout_seconds)
            await self._delete(operation, call)
        elif dice < 0.87:
            operation = self._invoke(store, "get", keys=(seq,))
            await self._get(operation, seq, stream.get(seq, timeout_seconds=timeout_seconds))
        elif dice < 0.93:
            operation = self._invoke(store, "head")
            await self._head(operation, stream.head(timeout_seconds=timeout_seconds))
        else:
            await self._read_stream(name, timeout_seconds)

    async def _append(self, name: str, timeout_seconds: float) -> None:
        chance = self._chance
        stream = self._client.stream(name)
        store: Store = (int(StoreKind.STREAM), name)
        value = self._value()
        dice = chance.random()
        msg_id = value.decode()[:40] if dice < 0.2 else None
        expected = self._last_seqs.get(name, 0) if dice > 0.9 else None
        for _ in range(3 if msg_id else 1):
            operation = self._invoke(store, "append", values=(value,), expected=expected)
            await self._write(
                operation,
                stream.append(
                    value,
                    msg_id=msg_id,
                    expected_last_seq=expected,
                    timeout_seconds=timeout_seconds,
                ),
            )
            if operation.outcome is Outcome.OK and chance.random() < 0.8:
                break

    async def _on_kv(self, name: str, timeout_seconds: float) -> None:
        chance = self._chance
        kv = self._client.kv(name)
        store: Store = (int(StoreKind.KV), name)
        key = chance.choice(KEYS)
        dice = chance.random()
        if dice < 0.5:
            value = self._value()
            expected = None
            if chance.random() < 0.4:
                expected = self._revisions.get((name, key), 0)
            operation = self._invoke(store, "set", keys=(key,), values=(value,), expected=expected)
            call = kv.set(
                key, value, expected_revision=expected, timeout_seconds=timeout_seconds
            )
            await self._write(operation, call)
        elif dice < 0.62:
            operation = self._invoke(store, "delete", keys=(key,))
            await self._delete(operation, kv.delete(key, timeout_seconds=timeout_seconds))
        elif dice < 0.64:
            operation = self._invoke(store, "delete_all")
            await self._delete(operation, kv.delete_all(timeout_seconds=timeout_seconds))
        elif dice < 0.88:
            operation = self._invoke(store, "get", keys=(key,))
            await self._get(operation, key, kv.get(key, timeout_seconds=timeout_seconds))
            self._revisions[name, key] = operation.seen.get(key, (b"", 0))[1]
        elif dice < 0.93:
            operation = self._invoke(store, "head")
            await self._head(operation, kv.head(timeout_seconds=timeout_seconds))
        else:
            await self._read_kv(name, timeout_seconds)

    # --- calls, noted ------------------------------------------------------------------------
    def _invoke(
        self,
        store: Store,
        action: str,
        *,
        keys: tuple[Key, ...] = (),
        values: tuple[bytes, ...] = (),
        end: int | None = None,
        expected: int | None = None,
    ) -> Operation:
        operation = self._history.invoke(
            self._name,
            store,
            action,
            keys=keys,
            values=values,
            end=end,
            expected=expected,
        )
        self._trace.add(f"invoke {operation.invoked} {action} {store[1]} {keys} {values!r:.60}")
        return operation

    async def _call[Result](  # type: ignore[valid-type]
        self, operation: Operation, call: Awaitable[Result]
    ) -> Result | None: ...

    async def _write(self, operation: Operation, call: Awaitable[Ack | list[Ack]]) -> None:
        answer = await self._ended(operation, call)
        if answer is None:
            return
        acks = answer if isinstance(answer, list) else [answer]
        operation.revisions = tuple(ack.revision for ack in acks)
        operation.seqs = tuple(ack.seq for ack in acks if ack.seq is not None)
        operation.duplicate = acks[0].duplicate
        if operation.seqs:
            name = operation.store[1]
            self._last_seqs[name] = max(self._last_seqs.get(name, 0), operation.seqs[-1])
        elif operation.keys:
            self._revisions[operation.store[1], str(operation.keys[0])] = operation.revisions[0]
        self._complete(operation)

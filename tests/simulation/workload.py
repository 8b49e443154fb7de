"""What applications do in a run: writers, readers and followers that contend for a few stores.

Values are unique: the client's name and a number. Every call is noted in the history when it is
made and when it has ended, with what it said.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import ClassVar, Final, TypeVar

from holdfast.client.connection import Client
from holdfast.client.following.subscription import Subscription
from holdfast.client.following.track import OUTAGES
from holdfast.protocol.errors import (
    ConnectionFailedError,
    HoldfastError,
    NoCoordinatorError,
    NoServerError,
    NotAllowedError,
    RequestError,
)
from holdfast.protocol.messages import Change, Durability, Head
from holdfast.protocol.names import StoreKind
from tests.simulation.simulated_cluster import Simulation
from tests.simulation.simulated_nodes import ClientNode
from tests.support.checking.calls import Answer, note_answer
from tests.support.checking.history import (
    Following,
    History,
    Key,
    Operation,
    Outcome,
    Store,
    change_of,
)

STREAMS: Final = ("log", "chat.7", "edits")
KVS: Final = ("settings", "jobs")
KEYS: Final = ("a", "a.b", "b", "b.1", "c")
#: The empty one is last, so that its last value is the store's.
PREFIXES: Final = ("a", "b", "")
STORES: Final[tuple[Store, ...]] = (
    *((int(StoreKind.STREAM), name) for name in STREAMS),
    *((int(StoreKind.KV), name) for name in KVS),
)
#: What stores are configured with in a run with limits; most of what is there has to go.
MAX_MESSAGES: Final[dict[Store, int]] = {
    (int(StoreKind.STREAM), "log"): 6,
    (int(StoreKind.STREAM), "chat.7"): 40,
    (int(StoreKind.KV), "settings"): 4,
}
_TTL_SECONDS: Final = (0.02, 0.5, 3.0, 12.0)
#: After this long all of it has expired, also by a clock that is 10 s behind that of the last
#: owner.
EXPIRED_SECONDS: Final = 30.0
#: With tiers other stores are in use after this long.
_SPELL_SECONDS: Final = 1.7
#: Errors after which nothing was, or ever will be, stored.
DEFINITE: Final = (RequestError, NoCoordinatorError, NoServerError, ConnectionFailedError)


_Answer = TypeVar("_Answer")


class Application:
    """One client's worth of work."""

    #: Tells apart what one client does at once.
    role: ClassVar[str] = ""

    def __init__(self, simulation: Simulation, node: ClientNode, client: Client) -> None:
        self._history: History = simulation.history
        self._trace = simulation.trace
        self._client = client
        self._name = node.name + self.role
        self._badge = node.badge
        self._chance = simulation.chance(f"work {self._name}")
        self._number = 0
        self._last_seqs: dict[str, int] = {}
        self._revisions: dict[tuple[str, str], int] = {}
        self.following: list[Follow] = []
        self._limited = bool(simulation.history.max_messages)
        self._seed = simulation.seed
        self._tiers = simulation.bucket is not None
        levels = simulation.chance(f"levels {self._name}")
        self._stored_ratio = levels.choice((0.0, 0.3, 1.0)) if self._tiers else 0.0
        self._levels = levels

    def _level(self) -> Durability | None:
        if self._stored_ratio and self._levels.random() < self._stored_ratio:
            return Durability.STORED
        return None

    def _one_of(self, names: tuple[str, ...]) -> str:
        """Return a store; with tiers most rest most of the time, so that they can go cold."""
        if not self._tiers:
            return self._chance.choice(names)
        spell = int(asyncio.get_running_loop().time() / _SPELL_SECONDS)
        awake = random.Random(f"{self._seed}/spell {spell}").choice(names)
        return awake if self._chance.random() < 0.99 else self._chance.choice(names)

    def _ttl(self) -> float | None:
        if self._limited and self._chance.random() < 0.3:
            return self._chance.choice(_TTL_SECONDS)
        return None

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
                await self._on_stream(self._one_of(STREAMS), timeout_seconds)
            else:
                await self._on_kv(self._one_of(KVS), timeout_seconds)

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
            ttl = self._ttl()
            operation = self._invoke(store, "append_many", values=values, expires=ttl is not None)
            call = stream.append_many(
                values, ttl_seconds=ttl, durability=self._level(), timeout_seconds=timeout_seconds
            )
            await self._call(operation, call)
        elif dice < 0.63:
            value, ttl = self._value(), self._ttl()
            expires = ttl is not None
            operation = self._invoke(store, "set", keys=(seq,), values=(value,), expires=expires)
            setting = stream.set(
                seq,
                value,
                ttl_seconds=ttl,
                durability=self._level(),
                timeout_seconds=timeout_seconds,
            )
            await self._call(operation, setting)
        elif dice < 0.70:
            operation = self._invoke(store, "delete", keys=(seq,))
            await self._call(operation, stream.delete(seq, timeout_seconds=timeout_seconds))
        elif dice < 0.72:
            end = seq if chance.random() < 0.8 else None
            operation = self._invoke(store, "delete_all", end=end)
            call = stream.delete_all(end_seq=end, timeout_seconds=timeout_seconds)
            await self._call(operation, call)
        elif dice < 0.87:
            operation = self._invoke(store, "get", keys=(seq,))
            await self._call(operation, stream.get(seq, timeout_seconds=timeout_seconds))
        elif dice < 0.93:
            operation = self._invoke(store, "head")
            await self._call(operation, stream.head(timeout_seconds=timeout_seconds))
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
        ttl = self._ttl()
        for _ in range(3 if msg_id else 1):
            operation = self._invoke(
                store, "append", values=(value,), expected=expected, expires=ttl is not None
            )
            await self._call(
                operation,
                stream.append(
                    value,
                    msg_id=msg_id,
                    expected_last_seq=expected,
                    ttl_seconds=ttl,
                    durability=self._level(),
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
            ttl = self._ttl()
            operation = self._invoke(
                store,
                "set",
                keys=(key,),
                values=(value,),
                expected=expected,
                expires=ttl is not None,
            )
            setting = kv.set(
                key,
                value,
                expected_revision=expected,
                ttl_seconds=ttl,
                durability=self._level(),
                timeout_seconds=timeout_seconds,
            )
            await self._call(operation, setting)
        elif dice < 0.62:
            operation = self._invoke(store, "delete", keys=(key,))
            await self._call(operation, kv.delete(key, timeout_seconds=timeout_seconds))
        elif dice < 0.64:
            operation = self._invoke(store, "delete_all")
            await self._call(operation, kv.delete_all(timeout_seconds=timeout_seconds))
        elif dice < 0.88:
            operation = self._invoke(store, "get", keys=(key,))
            await self._call(operation, kv.get(key, timeout_seconds=timeout_seconds))
            self._revisions[name, key] = operation.seen.get(key, (b"", 0))[1]
        elif dice < 0.93:
            operation = self._invoke(store, "head")
            await self._call(operation, kv.head(timeout_seconds=timeout_seconds))
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
        expires: bool = False,
    ) -> Operation:
        operation = self._history.invoke(
            self._name,
            store,
            action,
            keys=keys,
            values=values,
            end=end,
            expected=expected,
            expires=expires,
        )
        if self._badge is not None:
            operation.token = self._badge.presented.id
        self._trace.add(f"invoke {operation.invoked} {action} {store[1]} {keys} {values!r:.60}")
        return operation

    async def _answer(
        self, operation: Operation, call: Awaitable[_Answer]
    ) -> tuple[_Answer] | None:
        """Return what `call` gives, alone in a tuple; None once its error is noted."""
        try:
            return (await call,)
        except HoldfastError as error:
            operation.error = type(error).__name__
            definite = isinstance(error, DEFINITE)
            self._complete(operation, Outcome.REFUSED if definite else Outcome.UNKNOWN)
            return None

    def _complete(self, operation: Operation, outcome: Outcome = Outcome.OK) -> None:
        if self._badge is not None:
            operation.token_at_return = self._badge.presented.id
        self._history.complete(operation, outcome)
        if outcome is not Outcome.OK:
            operation.returned = None
        self._trace.add(
            f"return {operation.invoked} {outcome} {operation.error} {operation.seqs} "
            f"{operation.revisions} {operation.head_revision} "
            f"{sorted(operation.seen.items())!r:.80}"
        )

    async def _call(self, operation: Operation, call: Awaitable[Answer]) -> None:
        """Await a call that is one operation, and note what it gives."""
        answered = await self._answer(operation, call)
        if answered is None:
            return
        [answer] = answered
        note_answer(operation, answer, lambda row: row.value)
        name = operation.store[1]
        if isinstance(answer, Head):
            self._last_seqs[name] = answer.last_seq
        elif operation.seqs:
            self._last_seqs[name] = max(self._last_seqs.get(name, 0), operation.seqs[-1])
        elif operation.writes:
            self._revisions[name, str(operation.keys[0])] = operation.revisions[0]
        self._complete(operation)

    async def _read_stream(self, name: str, timeout_seconds: float) -> None:
        operation = self._invoke((int(StoreKind.STREAM), name), "get_all")
        stream = self._client.stream(name)

        async def read() -> None:
            async for message in stream.get_all(timeout_seconds=timeout_seconds):
                operation.seen[message.seq] = (message.value, message.revision)

        if await self._answer(operation, read()) is not None:
            self._complete(operation)

    async def _read_kv(self, name: str, timeout_seconds: float) -> None:
        operation = self._invoke((int(StoreKind.KV), name), "get_all")
        kv = self._client.kv(name)

        async def read() -> None:
            async for entry in kv.get_all(timeout_seconds=timeout_seconds):
                operation.seen[entry.key] = (entry.value, entry.revision)

        if await self._answer(operation, read()) is not None:
            self._complete(operation)


class Follow:
    """One follower of one store, from somewhere on."""

    def __init__(
        self, simulation: Simulation, number: int, chance: random.Random, client: str
    ) -> None:
        store = chance.choice(simulation.history.stores)
        self._following = Following(f"f{number}", store, client=client)
        if store[0] == StoreKind.STREAM:
            self._following.start_seq = chance.choice((None, 1, 1, chance.randint(1, 50)))
        else:
            self._following.prefix = chance.choice(PREFIXES)
        self._pause_seconds = chance.choice((0.0, 0.0, 0.01, 0.2))
        self._trace = simulation.trace
        self._history = simulation.history
        self._history.followings.append(self._following)

    def __repr__(self) -> str:
        return f"{self._following.follower} of {self._following.store[1]}"

    async def run(self, client: Client) -> None:
        """Follow until the store's last value, or for ever. Starts again if it cannot start."""
        while True:
            try:
                async with self._subscription(client) as subscription:
                    self._following.live_after = subscription._feed.track._until.revision
                    async for change in subscription:
                        if self._take(change):
                            self._following.complete = True
                            return
                        await asyncio.sleep(self._pause_seconds)
                    return
            except OUTAGES as error:
                # Only while starting: nothing has been given out. A disk that fails then is told
                # of.
                assert not self._following.changes, error
                await asyncio.sleep(0.5)
            except NotAllowedError:
                if not self._history.tokens:
                    raise
                # Nothing tells a follower when its token is good again: it begins anew.
                await asyncio.sleep(0.5)
                self._begin_anew()

    def _begin_anew(self) -> None:
        before = self._following
        self._following = replace(before, live_after=0, changes=[], told_at=[])
        self._history.followings.append(self._following)

    def _subscription(self, client: Client) -> Subscription:
        kind, name = self._following.store
        if kind == StoreKind.STREAM:
            return client.stream(name).subscribe(start_seq=self._following.start_seq)
        return client.kv(name).watch(prefix=self._following.prefix)

    def _take(self, change: Change) -> bool:
        followed = change_of(change)
        self._following.changes.append((change.kind, change.revision, followed))
        self._trace.add(f"{self!r} gets {change.kind} {change.revision}")
        return followed is not None and followed.value == last_value(
            self._following.store, self._following.prefix
        )


def last_value(store: Store, prefix: str) -> bytes:
    """Return what a follower of `prefix` waits for in the end."""
    return f"the end of {store[1]} {prefix}".encode()


async def configure(client: Client, history: History) -> None:
    """Give the stores of a run with limits theirs. Raises HoldfastError."""
    for (kind, name), max_messages in history.max_messages.items():
        store = client.stream(name) if kind == StoreKind.STREAM else client.kv(name)
        await store.configure(max_messages=max_messages)


async def write_last_values(history: History, client: Client, store: Store) -> None:
    """Write what followers wait for in the end. Raises HoldfastError."""
    kind, name = store
    for prefix in PREFIXES if kind == StoreKind.KV else ("",):
        value = last_value(store, prefix)
        if kind == StoreKind.STREAM:
            operation = history.invoke("last", store, "append", values=(value,))
            ack = await client.stream(name).append(value)
        else:
            key = f"{prefix}.end"
            operation = history.invoke("last", store, "set", keys=(key,), values=(value,))
            ack = await client.kv(name).set(key, value)
        note_answer(operation, ack)
        history.complete(operation, Outcome.OK)

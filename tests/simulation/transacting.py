"""Applications that change several keys or messages together, on the condition that what they read
has not changed since. They contend with everybody else for the same stores.

Each write of a transaction is noted as an operation of its own, so all that holds of writes is
checked of it too; what binds them is a `Transaction` in the history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

from holdfast.protocol.messages import Ack, Deleted
from holdfast.protocol.names import StoreKind
from tests.simulation.workload import KEYS, KVS, STREAMS, Application
from tests.support.checking.calls import note_answer
from tests.support.checking.history import Key, Outcome, Transaction


class Transactor(Application):
    """One task's worth of transactions."""

    role = "t"

    async def work(self, until: float) -> None:
        """Try one transaction after the other until the time `until`."""
        loop, chance = asyncio.get_running_loop(), self._chance
        while loop.time() < until:
            await asyncio.sleep(chance.expovariate(4.0))
            timeout_seconds = chance.choice((0.3, 1.0, 3.0, 8.0))
            if chance.random() < 0.6:
                await self._on_several_keys(chance.choice(KVS), timeout_seconds)
            else:
                await self._on_several_messages(chance.choice(STREAMS), timeout_seconds)

    async def _on_several_keys(self, name: str, timeout_seconds: float) -> None:
        chance = self._chance
        noted = Transaction(self._name, (int(StoreKind.KV), name), {})
        transaction = self._client.kv(name).transaction(timeout_seconds=timeout_seconds)
        if not await self._read(noted, transaction, chance.sample(KEYS, chance.randint(1, 3))):
            return
        *keys, deleted = chance.sample(KEYS, chance.randint(1, 4))
        for key in keys:
            value = self._value()
            transaction.set(key, value)
            self._note(noted, "set", keys=(key,), values=(value,))
        if chance.random() < 0.3:
            transaction.delete(deleted)
            self._note(noted, "delete", keys=(deleted,))
        await self._commit(noted, transaction.commit())

    async def _on_several_messages(self, name: str, timeout_seconds: float) -> None:
        chance = self._chance
        noted = Transaction(self._name, (int(StoreKind.STREAM), name), {})
        transaction = self._client.stream(name).transaction(timeout_seconds=timeout_seconds)
        last_seq = self._last_seqs.get(name, 0)
        seqs = sorted({chance.randint(max(1, last_seq - 9), last_seq + 1) for _ in range(2)})
        if not await self._read(noted, transaction, seqs):
            return
        for seq in seqs:
            if noted.conditions[seq] and chance.random() < 0.7:
                value = self._value()
                transaction.set(seq, value)
                self._note(noted, "set", keys=(seq,), values=(value,))
        expected = last_seq if chance.random() < 0.3 else None
        if expected is not None:
            transaction.expect_last_seq(expected)
        for _ in range(chance.randint(1, 2)):
            value = self._value()
            transaction.append(value)
            self._note(noted, "append", values=(value,), expected=expected)
            expected = None
        await self._commit(noted, transaction.commit())

    async def _read(self, noted: Transaction, transaction: Any, keys: Sequence[Key]) -> bool:
        began = None
        for key in keys:
            operation = self._invoke(noted.store, "get", keys=(key,))
            # What an earlier attempt had read comes in one answer, with the first of them.
            began = operation.invoked = operation.invoked if began is None else began
            await self._call(operation, transaction.get(key))
            if operation.outcome is not Outcome.OK:
                return False
            noted.conditions[key] = operation.seen.get(key, (b"", 0))[1]
        if self._chance.random() < 0.3:
            await asyncio.sleep(self._chance.expovariate(5.0))
        return True

    def _note(self, noted: Transaction, action: str, **fields: Any) -> None:
        noted.writes.append(self._invoke(noted.store, action, **fields))

    async def _commit(self, noted: Transaction, committing: Awaitable[list[Ack | Deleted]]) -> None:
        self._history.transactions.append(noted)
        whole = self._invoke(noted.store, "commit")
        answer = await self._answer(whole, committing)
        if answer is None:
            noted.outcome = whole.outcome
            for operation in noted.writes:
                operation.error = whole.error
                self._complete(operation, whole.outcome)
            return
        noted.outcome = Outcome.OK
        for operation, result in zip(noted.writes, answer[0], strict=True):
            note_answer(operation, result)
            if operation.seqs:
                last_seq = max(self._last_seqs.get(noted.store[1], 0), *operation.seqs)
                self._last_seqs[noted.store[1]] = last_seq
            self._complete(operation)
        self._complete(whole)

"""A write that is cancelled at any time is stored whole or not at all, and what follows it
works."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable

from holdfast.client import Client

BATCH = 40
ROUNDS = 40

Write = Callable[[int], Awaitable[object]]


async def cancelled_at_random(write: Write, seed: int) -> set[int]:
    """Start writes one after the other and cancel each some time before it is answered, or just
    after; return those that were done before."""
    chance = random.Random(seed)
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    await write(0)
    usual_seconds = loop.time() - began_at
    done = {0}
    for number in range(1, ROUNDS):
        task = asyncio.ensure_future(write(number))
        await asyncio.wait([task], timeout=chance.choice([0, 0.2, 0.5, 1, 2]) * usual_seconds)
        task.cancel()
        try:
            await task
            done.add(number)
        except asyncio.CancelledError:
            pass
        usual_seconds = min(usual_seconds, 0.1)
    return done


async def test_a_batch_of_messages_is_all_or_nothing(hf: Client, other: Client) -> None:
    notes = hf.stream("notes")

    async def write(number: int) -> None:
        await notes.append_many([b"%d" % number] * BATCH)

    done = await cancelled_at_random(write, seed=1)
    await notes.append(b"end")
    values = [message.value async for message in other.stream("notes").get_all()]
    counts = Counter(values[:-1])
    assert set(counts.values()) <= {BATCH}
    assert {b"%d" % number for number in done} <= set(counts)
    starts = values[:-1:BATCH]
    assert all(len(set(values[at : at + BATCH])) == 1 for at in range(0, len(values) - 1, BATCH))
    assert starts == sorted(starts, key=int), "in the order of the calls"


async def test_a_batch_of_keys_is_all_or_nothing(hf: Client, other: Client) -> None:
    settings = hf.kv("settings")

    async def write(number: int) -> None:
        await settings.set_many({f"k{key}": b"%d" % number for key in range(BATCH)})

    done = await cancelled_at_random(write, seed=2)
    await settings.set("end", b"")
    values = {entry.value async for entry in other.kv("settings").get_all(prefix="k")}
    assert len(values) == 1
    assert max(done) <= int(values.pop())


async def test_a_transaction_is_all_or_nothing(hf: Client, other: Client) -> None:
    accounts = hf.kv("accounts")
    await accounts.set_many({"a": b"1000", "b": b"0"})

    async def write(number: int) -> None:
        async with accounts.transaction() as t:
            a, b = await t.get("a"), await t.get("b")
            assert a is not None and b is not None
            t.set("a", b"%d" % (int(a.value) - 1))
            t.set("b", b"%d" % (int(b.value) + 1))

    done = await cancelled_at_random(write, seed=3)
    await accounts.set("end", b"")
    entries = {entry.key: entry.value async for entry in other.kv("accounts").get_all()}
    assert int(entries["a"]) + int(entries["b"]) == 1000
    assert int(entries["b"]) >= len(done)

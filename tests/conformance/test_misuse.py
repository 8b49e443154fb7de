"""What a mistaken application is told: its own mistake, at once, and nothing is stored."""

from __future__ import annotations

import asyncio
import copy
import math
import pickle
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.client import (
    KV,
    Client,
    ConnectionFailedError,
    InvalidArgumentError,
    InvalidNameError,
    WrittenEntry,
    connect,
)
from holdfast.client.recipes import Election, Lease

NAN = math.nan
#: Each with the argument that is wrong.
MISTAKES: list[tuple[str, Callable[[Client], Any]]] = [
    ("items", lambda hf: hf.kv("k").set_many("text")),
    ("items", lambda hf: hf.kv("k").set_many(7)),  # type: ignore[arg-type]
    ("items", lambda hf: hf.kv("k").set_many([("key", b"", 1)])),  # type: ignore[list-item]
    ("keys", lambda hf: hf.kv("k").get_many("theme")),
    ("keys", lambda hf: hf.kv("k").delete(None)),  # type: ignore[arg-type]
    ("keys", lambda hf: hf.kv("k").transaction().get_many("theme")),
    ("seqs", lambda hf: hf.stream("s").delete(1.5)),  # type: ignore[arg-type]
    ("seqs", lambda hf: hf.stream("s").transaction().get_many(7)),  # type: ignore[arg-type]
    ("values", lambda hf: hf.stream("s", codec="json").append_many("text")),
    ("values", lambda hf: hf.stream("s").append_many(b"bytes")),  # type: ignore[arg-type]
    ("items", lambda hf: hf.stream("s").set_many("text")),  # type: ignore[arg-type]
    ("items", lambda hf: hf.stream("s").set_many([(1, b"", {})])),  # type: ignore[list-item]
    ("messages", lambda hf: hf.stream("s").append_written("text")),  # type: ignore[arg-type]
    ("messages", lambda hf: hf.stream("s").append_written([b"value"])),  # type: ignore[list-item]
    ("entries", lambda hf: hf.kv("k").set_written("text")),  # type: ignore[arg-type]
    ("entries", lambda hf: hf.kv("k").set_written([("key", b"")])),  # type: ignore[list-item]
    ("time", lambda hf: hf.kv("k").set_written([WrittenEntry("key", b"", -1)])),
    ("source", lambda hf: hf.kv("k").put_file("f", 7)),  # type: ignore[arg-type]
    ("revision", lambda hf: hf.kv("k").fork("new", revision=-1)),
    ("revision", lambda hf: hf.kv("k").fork("new", revision="\ud800")),  # type: ignore[arg-type]
    ("seq", lambda hf: hf.stream("s").fork("new", seq=1.5)),  # type: ignore[arg-type]
    ("timeout_seconds", lambda hf: hf.servers(timeout_seconds=NAN)),
    ("timeout_seconds", lambda hf: hf.statistics(timeout_seconds="1")),  # type: ignore[arg-type]
    ("kind", lambda hf: anext(hf.stores(kind=NAN))),  # type: ignore[arg-type]
    ("kind", lambda hf: anext(hf.stores(kind=7))),
    ("prefix", lambda hf: anext(hf.stores(prefix="\ud800"))),
    ("prefix", lambda hf: anext(hf.heads(prefix=7))),  # type: ignore[arg-type]
    ("timeout_seconds", lambda hf: anext(hf.stores(timeout_seconds=-1))),
    ("start_revisions", lambda hf: hf.subscribe("a.*", start_revisions=7)),  # type: ignore[call-overload]
    ("kv", lambda hf: Lease("k", "lease")),  # type: ignore[arg-type]
    ("kv", lambda hf: Lease(hf.kv("k", codec="json"), "lease")),
    ("ttl_seconds", lambda hf: Lease(hf.kv("k"), "lease", ttl_seconds="1")),  # type: ignore[arg-type]
    ("ttl_seconds", lambda hf: Lease(hf.kv("k"), "lease", ttl_seconds=NAN)),
    ("ttl_seconds", lambda hf: Lease(hf.kv("k"), "lease", ttl_seconds=1e-6)),
    ("merge", lambda hf: hf.live_kv("k", merge=7)),  # type: ignore[call-overload]
    ("callback", lambda hf: hf.live_kv("k").on_change(None)),  # type: ignore[arg-type]
    ("callback", lambda hf: hf.live_stream("s").on_reject("text")),  # type: ignore[arg-type]
    ("codec", lambda hf: hf.kv("k", codec=7)),  # type: ignore[call-overload]
    ("durability", lambda hf: hf.stream("s").append(b"", durability=True)),
    ("seq", lambda hf: hf.stream("s").set(None, b"")),  # type: ignore[arg-type]
    ("max_wait_seconds", lambda hf: hf.stream("s").consumer("c").fetch(max_wait_seconds=NAN)),
    ("timeout_seconds", lambda hf: Lease(hf.kv("k"), "lease").acquire(timeout_seconds=NAN)),
    ("kv", lambda hf: Election(None, "leader")),  # type: ignore[arg-type]
    ("nats", lambda hf: connect(7)),  # type: ignore[arg-type]
    ("name", lambda hf: connect(name=None)),  # type: ignore[arg-type]
    ("wait_seconds", lambda hf: connect(wait_seconds="1")),  # type: ignore[arg-type]
    ("wait_seconds", lambda hf: connect(wait_seconds=NAN)),
    ("direct", lambda hf: connect(direct=7)),  # type: ignore[arg-type]
    ("direct", lambda hf: connect(direct=b"/run/hf")),  # type: ignore[arg-type]
    ("direct", lambda hf: connect(direct="")),
    ("direct", lambda hf: connect(direct="a\0b")),
]


async def outcome(done: Any) -> Any:
    return await asyncio.wait_for(done, 30) if isinstance(done, Awaitable) else done


async def test_each_mistake_names_its_argument_and_changes_nothing(hf: Client, kv: KV) -> None:
    told = []
    for number, (argument, mistake) in enumerate(MISTAKES):
        with pytest.raises(InvalidArgumentError) as wrong:
            await outcome(mistake(hf))
        told.append((number, wrong.value.fields["argument"]))
        assert argument in str(wrong.value)
    assert told == [(number, argument) for number, (argument, _) in enumerate(MISTAKES)]
    assert (await kv.head()).revision == (await hf.stream("s").head()).revision == 0
    with pytest.raises(InvalidNameError):
        Lease(kv, "lease", holder="\ud800")


async def test_a_live_replica_that_was_not_entered_says_how_to_open_it(hf: Client) -> None:
    with pytest.raises(ConnectionFailedError, match=r"'k'\) is not open. Try: `async with`"):
        hf.live_kv("k")["key"] = b""


async def test_a_client_tells_that_it_cannot_be_pickled_or_copied(hf: Client, kv: KV) -> None:
    for one in (hf, kv):
        with pytest.raises(TypeError, match="connect in each process"):
            pickle.dumps(one)
        with pytest.raises(TypeError, match="connect in each process"):
            copy.deepcopy(one)


async def test_who_waits_for_a_lease_is_told_that_the_client_was_closed(nats: str) -> None:
    client = await connect(nats, tenant="closing")
    held = Lease(client.kv("k"), "lease")
    assert await held.acquire()
    waiting = asyncio.create_task(Lease(client.kv("k"), "lease").acquire())
    await asyncio.sleep(0)
    await client.close()
    with pytest.raises(ConnectionFailedError):
        await asyncio.wait_for(waiting, 30)
    with pytest.raises(ConnectionFailedError):
        await asyncio.wait_for(Lease(client.kv("k"), "other").acquire(), 30)

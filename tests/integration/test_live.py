"""Live replicas on a whole cluster, whose servers are killed while documents are typed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest
from fake_persist import until
from holdfast_up import RunningUp, running_up
from torture.editing_trace import EditingTrace, replay, traces

from holdfast.client import (
    DELETE,
    EntryChange,
    LimitExceededError,
    LiveStream,
    Origin,
    Rejection,
    connect,
)
from holdfast.client.live_kv import Removal

TYPISTS = 8
TRANSACTIONS = 150


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    with running_up(tmp_path_factory.mktemp("cluster") / "data", "--servers", "2") as up:
        yield up


def test_a_live_kv_is_the_same_dictionary_everywhere(cluster: RunningUp) -> None:
    async def main() -> None:
        async with (
            connect(cluster.nats) as one,
            connect(cluster.nats) as two,
            one.live_kv("same", codec="json") as ada,
            two.live_kv("same", codec="json") as bob,
        ):
            heard: list[EntryChange[Any]] = []
            bob.on_change(heard.append)
            ada["theme"] = "dark"
            ada.update(font=12, size=None)
            assert (ada["theme"], ada.get("absent"), len(ada)) == ("dark", None, 3)
            await ada.save()
            await until(lambda: len(bob) == 3)
            assert bob == ada == {"theme": "dark", "font": 12, "size": None}
            assert heard[0] == EntryChange("theme", "dark", None, Origin.REMOTE)
            del bob["theme"]
            assert list(bob.keys()) == ["font", "size"], "D16: keys do not list what was deleted"
            assert bob.pop("font") == 12
            with pytest.raises(KeyError):
                del bob["theme"]
            await until(lambda: list(ada) == ["size"])
            entry = ada.entry("size")
            assert entry is not None
            assert entry.value == b"null"
            ada.clear()
            await until(lambda: not bob)

    asyncio.run(main())


def test_concurrent_writes_of_one_key_are_merged_and_none_is_lost(cluster: RunningUp) -> None:
    def union(
        base: list[int] | None, local: list[int] | None, remote: list[int] | None
    ) -> list[int] | Removal:
        old, mine, theirs = set(base or []), set(local or []), set(remote or [])
        return sorted((theirs | (mine - old)) - (old - mine)) or DELETE

    async def main() -> None:
        async with connect(cluster.nats) as client, AsyncExitStack() as stack:
            replicas = [
                await stack.enter_async_context(client.live_kv("shared", codec="json", merge=union))
                for _ in range(4)
            ]
            for number in range(40):
                replica = replicas[number % 4]
                replica["numbers"] = sorted([*replica.get("numbers", []), number])
                if number % 7 == 0:
                    await asyncio.sleep(0)
            await asyncio.gather(*[replica.save() for replica in replicas])
            await until(lambda: all(r.get("numbers") == list(range(40)) for r in replicas))
            replicas[0]["numbers"] = []
            await replicas[0].save()

    asyncio.run(main())


def test_a_live_stream_is_the_same_list_everywhere(cluster: RunningUp) -> None:
    async def main() -> None:
        async with (
            connect(cluster.nats) as one,
            connect(cluster.nats) as two,
            one.live_stream("list") as ada,
            two.live_stream("list") as bob,
        ):
            for number in range(50):
                ada.append(b"a%d" % number)
                bob.append(b"b%d" % number)
                if number % 10 == 0:
                    await asyncio.sleep(0)
            assert (len(ada), ada[-1].seq, ada[-1].value) == (50, None, b"a49")
            await asyncio.gather(ada.save(), bob.save())
            await until(lambda: len(ada) == len(bob) == 100)
            assert list(ada) == list(bob)
            assert [message.seq for message in ada] == list(range(1, 101))
            for name in (b"a", b"b"):
                own = [message.value for message in bob if message.value[:1] == name]
                assert own == [b"%s%d" % (name, number) for number in range(50)]
            stream = one.stream("list")
            await stream.delete_all(end_seq=90)
            await stream.delete(95)
            await stream.set(96, b"set")
            await stream.configure(max_messages=5)
            await until(lambda: len(ada) == len(bob) == 5)
            assert [message.seq for message in ada[:2]] == [96, 97]
            assert bob[0].value == b"set"
            async with two.live_stream("list", last=2) as late:
                assert [message.seq for message in late] == [99, 100]
                await late.load()
                assert list(late) == list(ada)

    asyncio.run(main())


def test_what_the_store_will_not_have_is_rejected_and_the_rest_stored(cluster: RunningUp) -> None:
    async def main() -> None:
        async with connect(cluster.nats) as client:
            await client.kv("limited").configure(max_message_bytes=20)
            await client.kv("limited").set("a", b"old")
            async with client.live_kv("limited") as live:
                rejected: list[Rejection[bytes]] = []
                live.on_reject(rejected.append)
                live["a"] = b"x" * 30
                live["b"] = b"fits"
                with pytest.raises(LimitExceededError) as error:
                    await live.save()
                assert "rejected: a write of 'a'" in error.value.__notes__[0]
                assert [(each.key, each.value) for each in rejected] == [("a", b"x" * 30)]
                assert dict(live) == {"a": b"old", "b": b"fits"}
                await live.save()

    asyncio.run(main())


def paragraphs() -> list[EditingTrace]:
    """What is typed: the beginnings of real editing traces, or made-up ones where those are not."""
    found = [EditingTrace.load(path) for path in traces()[:2]]
    if found:
        return [found[number % len(found)] for number in range(TYPISTS)]
    chance = random.Random(20261121)
    made = []
    for number in range(TYPISTS):
        document, transactions = "", []
        for _ in range(TRANSACTIONS):
            at = chance.randint(0, len(document))
            deleted = min(chance.randint(0, 2), len(document) - at)
            patches = [[at, deleted, chance.choice("abc\n") * chance.randint(1, 3)]]
            document = replay(document, [patches])
            transactions.append(patches)
        made.append(EditingTrace(f"made.{number}", "", transactions, document))
    return made


def test_eight_typists_share_a_document_across_the_death_of_its_owner(cluster: RunningUp) -> None:
    """Each types a paragraph; whoever comes later has every one of them, byte for byte."""
    typed = paragraphs()

    async def type_paragraph(number: int, document: LiveStream[Any], half: asyncio.Barrier) -> None:
        for count, patches in enumerate(typed[number].transactions[:TRANSACTIONS]):
            document.append([number, patches])
            if count == TRANSACTIONS // 2:
                await half.wait()
            if count % 4 == 0:
                await asyncio.sleep(0.002)
        await document.save(timeout_seconds=60)

    async def main() -> None:
        half = asyncio.Barrier(TYPISTS + 1)
        async with AsyncExitStack() as stack:
            documents = []
            for _ in range(TYPISTS):
                client = await stack.enter_async_context(connect(cluster.nats))
                live = client.live_stream("document", codec="msgpack")
                documents.append(await stack.enter_async_context(live))
            async with asyncio.TaskGroup() as tasks:
                for number, document in enumerate(documents):
                    tasks.create_task(type_paragraph(number, document, half))
                await until(lambda: bool(documents[0]) and documents[0][0].seq == 1)
                owner = (await client.stream("document").head()).server
                await half.wait()
                pid = cluster.pids()[owner]
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
            late = await stack.enter_async_context(connect(cluster.nats))
            reader = await stack.enter_async_context(late.live_stream("document", codec="msgpack"))
            assert len(reader) == TYPISTS * TRANSACTIONS
            await until(lambda: all(len(each) == len(reader) for each in documents), 60)
            assert [message.seq for message in reader] == list(range(1, len(reader) + 1))
            for document in documents:
                assert list(document) == list(reader)
            for number, trace in enumerate(typed):
                found: list[Sequence[Any]] = [
                    message.value[1] for message in reader if message.value[0] == number
                ]
                assert replay(trace.start, found) == trace.document_after(TRANSACTIONS)

    asyncio.run(main())

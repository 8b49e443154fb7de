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

from holdfast.client import LiveStream, connect
from tests.support.holdfast_up import RunningUp, running_up
from tests.support.waiting import until
from tests.torture.editing_trace import EditingTrace, replay, traces

TYPISTS = 8
TRANSACTIONS = 150


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    with running_up(tmp_path_factory.mktemp("cluster") / "data", "--servers", "2") as up:
        yield up


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


async def test_eight_typists_share_a_document_across_the_death_of_its_owner(
    cluster: RunningUp,
) -> None:
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
        await until(lambda: all(len(each) == len(reader) for each in documents), seconds=60)
        assert [message.seq for message in reader] == list(range(1, len(reader) + 1))
        for document in documents:
            assert list(document) == list(reader)
        for number, trace in enumerate(typed):
            found: list[Sequence[Any]] = [
                message.value[1] for message in reader if message.value[0] == number
            ]
            assert replay(trace.start, found) == trace.document_after(TRANSACTIONS)

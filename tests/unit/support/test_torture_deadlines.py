"""What a torture says of who does not do what it waits for, and that it goes on without them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.supervised_cluster import ClientProcess
from tests.torture.deadlines import all_ended, heard, standing, within
from tests.torture.worker import Task
from tests.torture.workload import KVS, STREAMS

SOON = 0.01
ALL = len(STREAMS + KVS)


def client(name: str, **said: Any) -> ClientProcess[Task]:
    process = ClientProcess(Task("follower", name, 1, "", "", 1.0), "no.module")
    process.said.update(said)
    return process


def test_a_follower_is_told_by_the_stores_that_caught_up_and_those_that_did_not() -> None:
    assert standing("w1", {"connected": True}) == "w1"
    told = standing("restless", {"beginning": [], "waiting": ["torture.k0", "torture.s1"]})
    assert told == f"restless ({ALL - 2} of {ALL} stores caught up, not torture.k0, torture.s1)"
    told = standing("restless", {"beginning": ["torture.k0"], "waiting": []})
    assert told == f"restless (subscribing to torture.k0; {ALL} of {ALL} stores caught up)"


async def test_who_has_not_said_a_word_in_time_is_named() -> None:
    fast = client("steady", caught_up=True)
    slow = client("restless", beginning=[], waiting=["torture.s9"])
    with pytest.raises(TimeoutError) as caught:
        await heard("caught_up", [fast, slow], SOON)
    assert "not caught_up" in str(caught.value)
    assert "restless" in str(caught.value) and "not torture.s9" in str(caught.value)
    assert "steady" not in str(caught.value)


async def test_who_does_not_end_is_killed_and_named() -> None:
    killed = asyncio.Event()

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            killed.set()

    ends = asyncio.create_task(asyncio.sleep(0))
    hangs = asyncio.create_task(never())
    slow = client("restless", beginning=[], waiting=["torture.s9"])
    [wrong] = await all_ended({ends: client("steady"), hangs: slow}, SOON)
    assert killed.is_set() and hangs.done()
    assert "restless" in wrong and "killed" in wrong and "not torture.s9" in wrong


async def test_a_deadline_names_what_was_waited_for_and_no_other_timeout() -> None:
    with pytest.raises(TimeoutError, match=r"reading takes longer than 0\.01 s"):
        async with within(SOON, "reading"):
            await asyncio.Event().wait()
    with pytest.raises(TimeoutError, match="of another kind"):
        async with within(60.0, "reading"):
            raise TimeoutError("of another kind")

"""Leases and elections: one holder at a time, and whoever waits is the next."""

from __future__ import annotations

import asyncio
import threading

import pytest

from holdfast.client import Client, InvalidArgumentError, sync
from holdfast.client.recipes import BlockingLease, Election, Leader, Lease, LeaseLostError
from tests.support.present import present
from tests.support.waiting import until

#: Long enough that no lease ends by itself, on whatever machine.
TTL_SECONDS = 60.0


def lease(client: Client, holder: str = "") -> Lease:
    return Lease(client.kv("leases"), "job", holder=holder, ttl_seconds=TTL_SECONDS)


async def test_a_lease_has_one_holder_at_a_time_and_the_next_gets_it_at_once(
    hf: Client, other: Client
) -> None:
    tokens: list[int] = []
    inside = 0

    async def work(client: Client) -> None:
        nonlocal inside
        for _ in range(5):
            async with lease(client) as held:
                inside += 1
                assert inside == 1 and held.held
                tokens.append(held.token)
                await asyncio.sleep(0)
                inside -= 1

    async with asyncio.timeout(30):
        await asyncio.gather(work(hf), work(other), work(hf))
    assert tokens == sorted(set(tokens)) and len(tokens) == 15
    assert await hf.kv("leases").get("job") is None


async def test_who_does_not_get_a_lease_in_time_has_none(hf: Client, other: Client) -> None:
    async with lease(hf) as held:
        waiting = lease(other)
        assert not await waiting.acquire(timeout_seconds=0.05)
        assert not waiting.held
        with pytest.raises(LeaseLostError):
            waiting.check()
        held.check()
        with pytest.raises(InvalidArgumentError):
            await held.acquire()
    assert not held.held
    await held.release()
    assert await waiting.acquire()
    await waiting.release()
    for wrong in ({"ttl_seconds": 0}, {"kv": hf.kv("x", codec="json")}):
        with pytest.raises(InvalidArgumentError):
            Lease(**{"kv": hf.kv("x"), "key": "k", **wrong})


async def test_the_body_of_a_lease_that_is_lost_is_cancelled(hf: Client, other: Client) -> None:
    async def hold() -> None:
        async with Lease(hf.kv("leases"), "job", ttl_seconds=4.5):
            await other.kv("leases").delete("job")
            await asyncio.Event().wait()

    async with asyncio.timeout(30):
        with pytest.raises(LeaseLostError, match="job"):
            await hold()
        # Whoever cancels the task is not told of a loss instead.
        async with lease(hf) as held:
            holding = asyncio.ensure_future(hold())
            await asyncio.sleep(0)
            holding.cancel()
            with pytest.raises(asyncio.CancelledError):
                await holding
            assert held.held


async def test_a_lease_is_renewed_while_it_is_held(hf: Client, other: Client) -> None:
    async with Lease(hf.kv("leases"), "job", holder="ada", ttl_seconds=4.5) as held:
        await until(lambda: held.revision > held.token, "it is renewed")
        entry = present(await other.kv("leases").get("job"))
        assert entry.value.endswith(b" ada") and entry.revision >= held.revision


async def test_a_write_of_a_former_holder_is_refused_by_its_revision(
    hf: Client, other: Client
) -> None:
    kv = hf.kv("leases")
    async with lease(hf) as held:
        async with kv.transaction() as change:
            change.expect(held.key, held.revision)
            change.set("done", b"by the holder")
        stale = held.revision
    async with lease(other):
        change = kv.transaction()
        change.expect("job", stale)
        change.set("done", b"too late")
        with pytest.raises(Exception, match="expected revision"):
            await change.commit()
    assert present(await kv.get("done")).value == b"by the holder"


async def test_an_election_shows_its_leader_to_everybody(hf: Client, other: Client) -> None:
    ada = Election(hf.kv("leaders"), "scheduler", "ada", ttl_seconds=TTL_SECONDS)
    bob = Election(other.kv("leaders"), "scheduler", "bob", ttl_seconds=TTL_SECONDS)
    audience = Election(other.kv("leaders"), "scheduler")
    seen: list[Leader | None] = []

    async def look_on() -> None:
        async for leader in audience.changes():
            seen.append(leader)

    looking = asyncio.ensure_future(look_on())
    await until(lambda: seen == [None])
    assert await audience.leader() is None
    async with ada.campaign():
        await until(lambda: len(seen) == 2)
        assert await bob.leader() == seen[-1]
        assert present(seen[-1]).candidate == "ada"
        # What is not the key of the election says nothing about it.
        await hf.kv("leaders").set("scheduler.2", b"x y")
        succeeding = asyncio.ensure_future(bob.campaign().acquire())
    assert await succeeding
    await until(lambda: present(seen[-1] or Leader("", "")).candidate == "bob")
    names = [leader and leader.candidate for leader in seen]
    assert names[:2] == [None, "ada"] and names[-1] == "bob"
    looking.cancel()


def test_blocking_code_has_leases_too(nats: str, tenant: str) -> None:
    with sync.connect(nats, tenant=tenant) as hf:
        kv = hf.kv("leases")
        taken = threading.Event()

        def wait() -> None:
            with BlockingLease(kv, "job", ttl_seconds=TTL_SECONDS) as second:
                assert second.token > first.token and second.revision >= second.token
                taken.set()

        with BlockingLease(kv, "job", holder="first", ttl_seconds=TTL_SECONDS) as first:
            first.check()
            assert first.held and first.key == "job"
            assert not BlockingLease(kv, "job").acquire(timeout_seconds=0.05)
            waiting = threading.Thread(target=wait)
            waiting.start()
        assert taken.wait(30)
        waiting.join()
        with pytest.raises(LeaseLostError):
            first.check()

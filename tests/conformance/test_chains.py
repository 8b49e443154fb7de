"""Chains of hashes: who kept an ack can tell later that nothing before it was changed."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.client import (
    KV,
    ChainLink,
    Client,
    DeniedError,
    HeaderBlock,
    InvalidArgumentError,
    Stream,
    check_chain,
    leaf_of_entry,
    leaf_of_message,
)
from holdfast.client import sync as blocking
from tests.support.present import present


async def test_each_ack_has_the_chain_after_its_message(stream: Stream, other: Client) -> None:
    assert (await stream.append(b"before")).chain is None
    assert (await stream.head()).chain is None
    await stream.configure(chain=True)
    acks = [await stream.append(b"one", headers={"user": "ada"}, subject="a.b")]
    acks += await asyncio.gather(*(stream.append(b"%d" % number) for number in range(20)))
    acks += await stream.append_many([b"x", (b"y", {"n": "ü"}), (b"z", None, "c")])
    acks.append(await stream.append(b"block", headers=HeaderBlock.of({"a": "1"}), subject="c"))
    acks.append(await stream.set(acks[-1].seq + 1, b"at the end"))
    acks.append(await stream.append(bytes(2_000_000)))
    assert (await stream.append(b"id", msg_id="i")).chain is not None
    again = await stream.append(b"id", msg_id="i")
    assert (again.duplicate, again.chain) == (True, None)
    head = await stream.head()
    report = await other.stream("s").verify_chain(acks)
    assert report.is_sound
    assert report.matched == (*sorted(ack.seq or 0 for ack in acks), head.last_seq)
    assert (report.base_seq, report.last_seq, report.chain) == (1, head.last_seq, head.chain)


async def test_what_was_removed_leaves_the_chain_as_it_was(stream: Stream) -> None:
    await stream.configure(chain=True)
    acks = [await stream.append(b"%d" % number, subject=f"s.{number % 2}") for number in range(10)]
    await stream.delete([5, 6, 8])
    report = await stream.verify_chain(acks)
    assert (report.matched, report.removed) == (tuple(range(1, 11)), 3)
    await stream.delete_all(end_seq=4)
    report = await stream.verify_chain(acks)
    # What is gone from the front needs nothing kept: 5 and 6 too.
    assert (report.base_seq, report.matched) == (6, (6, 7, 8, 9, 10))
    assert report.trimmed == (1, 2, 3, 4, 5)
    await stream.purge("s.*")
    report = await stream.verify_chain(acks)
    assert (report.base_seq, report.chain, report.matched) == (10, acks[-1].chain, (10,))
    assert present((await stream.append(b"next")).chain) == (await stream.head()).chain


async def test_a_lie_is_found(stream: Stream) -> None:
    await stream.configure(chain=True)
    acks = [await stream.append(b"%d" % number) for number in range(4)]
    leaves = [
        (each.seq, leaf_of_message(each)) async for each in stream.get_all()
    ]
    assert check_chain(leaves, acks).matched == (1, 2, 3, 4)
    third = present(await stream.get(3))._replace(value=b"forged")
    forged = [*leaves[:2], (3, leaf_of_message(third)), leaves[3]]
    report = check_chain(forged, acks)
    assert (report.matched, report.differing, report.is_sound) == ((1, 2), (3, 4), False)
    assert check_chain([*leaves[:1], *leaves[2:]], acks).differing == (2, 3, 4)
    assert check_chain(leaves[:3], acks).differing == (4,)
    report = await stream.verify_chain([acks[0], ChainLink(2, bytes(32))])
    assert (report.matched, report.differing) == ((1, 4), (2,))


async def test_a_chain_cannot_be_ended_and_its_messages_not_replaced(
    stream: Stream, kv: KV
) -> None:
    with pytest.raises(InvalidArgumentError):
        await stream.verify_chain()
    await stream.configure(chain=True)
    await stream.append(b"1")
    for chain in (False, None):
        with pytest.raises(DeniedError):
            await stream.configure(chain=chain)
    with pytest.raises(DeniedError):
        await stream.set(1, b"x")
    assert (await stream.config()).chain
    with pytest.raises(InvalidArgumentError):
        await kv.verify_chain()
    with pytest.raises(InvalidArgumentError):
        await stream.verify_chain([await kv.set("a", b"")])


async def test_each_ack_of_a_kv_has_the_chain_after_its_set(kv: KV, other: Client) -> None:
    assert (await kv.set("before", b"1")).chain is None
    await kv.configure(chain=True)
    # As long as its first set stands, the leaves of all later ones are kept.
    acks = [await kv.set("kept", b"one", headers={"user": "ada"})]
    sets = (kv.set(f"k{number % 7}", b"%d" % number) for number in range(20))
    acks += await asyncio.gather(*sets)
    acks += await kv.set_many({"x": b"1", "y": b"2"})
    acks.append(await kv.set("large", bytes(2_000_000)))
    acks.append(await kv.set("ttl", b"1", ttl_seconds=600))
    async with kv.transaction() as transaction:
        transaction.set("a", b"two")
        transaction.set("z", b"three")
    await kv.delete(["x", "k1", "k2"])
    assert all(ack.seq is None and ack.chain is not None for ack in acks)
    head = await kv.head()
    report = await other.kv("k").verify_chain(acks)
    assert report.is_sound
    assert set(report.matched) >= {ack.revision for ack in acks}
    assert report.chain == head.chain
    assert report.removed > 12
    told = [entry async for entry in other.kv("k").get_all() if entry.large is None]
    leaves = {entry.revision: leaf_of_entry(entry) for entry in told if entry.key != "before"}
    assert len(leaves) > 5
    lie = await kv.verify_chain([acks[0]._replace(chain=bytes(32)), acks[1]])
    assert lie.differing == (acks[0].revision,)
    await kv.delete_all()
    report = await kv.verify_chain(acks)
    assert (report.matched, report.differing, report.chain) == ((), (), head.chain)
    again = await kv.set("a", b"three")
    assert (await kv.verify_chain([again])).matched == (again.revision,)


def test_the_blocking_api_verifies_too(nats: str, tenant: str) -> None:
    with blocking.connect(nats, tenant=tenant) as hf:
        stream = hf.stream("s")
        stream.configure(chain=True)
        acks = [stream.append(b"1"), stream.append(b"2")]
        assert stream.verify_chain(acks).matched == (1, 2)
        assert stream.head().chain == acks[1].chain
        kv = hf.kv("k")
        kv.configure(chain=True)
        ack = kv.set("a", b"1")
        assert kv.verify_chain([ack]).matched == (ack.revision,)

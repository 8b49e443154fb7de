"""Work queues: each message to one worker at a time, again if it is not acknowledged, and never
after."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.client import (
    Client,
    Consumer,
    Delivery,
    InvalidArgumentError,
    InvalidNameError,
    NotFoundError,
    Stream,
)
from tests.support.present import present


async def letters(consumer: Consumer) -> list[tuple[Any, ...]]:
    """Return what is in the dead-letter stream of a consumer."""
    return [
        (letter.message.value, dict(letter.message.headers), *letter[1:])
        async for letter in consumer.dead_letters()
    ]


async def values(consumer: Consumer, batch: int = 10) -> list[bytes]:
    """Return what is there now, acknowledged."""
    found = await consumer.fetch(batch, max_wait_seconds=0)
    await consumer.ack(found)
    return [delivery.message.value for delivery in found]


async def test_a_fetch_gives_what_is_there_in_order_and_each_once(
    stream: Stream, other: Client
) -> None:
    await stream.append_many([b"%d" % number for number in range(5)])
    one, two = stream.consumer("c"), other.stream("s").consumer("c")
    assert await values(one, 2) == [b"0", b"1"]
    assert await values(two, 2) == [b"2", b"3"]
    assert await values(one, 2) == [b"4"]
    assert await values(two) == []
    late = stream.consumer("late", start_seq=5)
    assert await values(late) == [b"4"], "every consumer has a cursor of its own"
    assert [info.name for info in await other.stream("s").consumers()] == ["c", "late"]


async def test_what_is_handed_back_comes_again_and_what_is_done_or_given_up_does_not(
    stream: Stream, other: Client
) -> None:
    await stream.append_many([b"nak", b"ack", b"term", b"late"])
    consumer = stream.consumer("c", ack_wait_seconds=30)
    nak, ack, term, late = await consumer.fetch(4)
    assert [await nak.nak(), await ack.ack(), await term.term()] == [True] * 3
    assert await late.nak(delay_seconds=60)
    assert not await ack.ack(), "it was done before"
    [again] = await consumer.fetch(10)
    assert (again.message.value, again.delivery_count) == (b"nak", 2)
    assert not await nak.in_progress(), "it is with somebody else now"
    assert await again.ack()
    info = await other.stream("s").consumer("c").info()
    assert (info.ack_floor, info.ack_pending_count, info.lag) == (3, 1, 0)
    assert (info.acked_count, info.given_up_count, info.redelivered_count) == (2, 1, 1)


async def test_what_is_not_acknowledged_in_time_goes_to_another_worker_so_often(
    stream: Stream, hf: Client, other: Client
) -> None:
    await stream.append(b"hard")
    settings = {"ack_wait_seconds": 0.1, "max_deliveries": 3}
    counts = []
    for client in (hf, other, hf):
        [delivery] = await client.stream("s").consumer("c", **settings).fetch()
        counts.append(delivery.delivery_count)
    assert counts == [1, 2, 3]
    consumer = other.stream("s").consumer("c")
    assert await consumer.fetch(max_wait_seconds=0.5) == []
    assert (await consumer.info()).given_up_count == 1


async def test_workers_wait_for_work_and_share_it(hf: Client, other: Client) -> None:
    async def work(consumer: Consumer, done: list[bytes]) -> None:
        async for delivery in consumer:
            done.append(delivery.message.value)
            await delivery.ack()

    done: list[bytes] = []
    consumers = [client.stream("s").consumer("c") for client in (hf, other, hf)]
    workers = [asyncio.ensure_future(work(each, done)) for each in consumers]
    for number in range(30):
        await other.stream("s").append(b"%d" % number)
    while (await consumers[0].info()).ack_floor < 30:
        await asyncio.sleep(0.05)
    for consumer in consumers:
        await consumer.aclose()
    await asyncio.gather(*workers)
    assert sorted(done, key=int) == [b"%d" % number for number in range(30)]


async def test_what_was_removed_from_the_stream_is_not_delivered(
    stream: Stream, other: Client
) -> None:
    await stream.append_many([b"%d" % number for number in range(1, 7)])
    consumer = other.stream("s").consumer("c")
    [first] = await consumer.fetch()
    await stream.delete_all(end_seq=3)
    await stream.delete(5)
    assert await first.nak()
    assert await values(consumer) == [b"4", b"6"]
    info = await consumer.info()
    assert (info.ack_floor, info.ack_pending_count) == (6, 0)


async def test_no_more_is_with_workers_than_may_be(stream: Stream, other: Client) -> None:
    await stream.append_many([b"1", b"2", b"3"])
    consumer = stream.consumer("c", max_ack_pending=2)
    held: list[Delivery] = await consumer.fetch(10)
    assert len(held) == 2
    assert await consumer.fetch(10, max_wait_seconds=0) == []
    await held[0].ack()
    assert await values(other.stream("s").consumer("c")) == [b"3"]


async def test_a_deleted_consumer_begins_anew(stream: Stream, other: Client) -> None:
    await stream.append(b"1")
    consumer, old = stream.consumer("c"), other.stream("s").consumer("c")
    assert await values(old) == [b"1"]
    assert await consumer.delete()
    assert not await consumer.delete()
    with pytest.raises(NotFoundError):
        await old.fetch(max_wait_seconds=0)
    assert await values(consumer) == [b"1"]
    with pytest.raises(InvalidNameError):
        stream.consumer("a.b")


async def test_what_is_given_up_goes_to_the_dead_letter_stream_and_comes_back(
    hf: Client, other: Client
) -> None:
    orders = hf.stream("orders")
    large = bytes(1_100_000)
    await orders.append_many([(b"bad", {"by": "ada"}), b"good", b"hopeless"])
    await orders.append(large)
    options: Any = {"max_deliveries": 2, "dead_letter": "orders.dead", "ack_wait_seconds": 60}
    consumer = orders.consumer("c", **options)
    bad, good, hopeless, huge = await consumer.fetch(4)
    said = [await good.ack(), await hopeless.term(), await bad.nak(), await huge.nak()]
    assert all(said)
    assert not await hopeless.term(), "it was said before"
    for delivery in await consumer.fetch(4):
        assert delivery.delivery_count == 2
        await delivery.nak()
    assert await consumer.fetch(4, max_wait_seconds=0) == []
    dead = await letters(other.stream("orders").consumer("c"))
    assert dead == [
        (b"hopeless", {}, "orders", 3, "c", 1, "term"),
        (b"bad", {"by": "ada"}, "orders", 1, "c", 2, "max_deliveries"),
        (b"", {}, "orders", 4, "c", 2, "max_deliveries"),
    ]
    assert present(await hf.stream("orders.dead").get(3)).value == large
    info = await consumer.info()
    assert (info.ack_floor, info.given_up_count) == (4, 3)
    assert info.config.dead_letter == "orders.dead"
    assert await letters(orders.consumer("another")) == [], "it has no dead letters"

    found = [letter async for letter in consumer.dead_letters()]
    ack = await consumer.requeue(found[1])
    assert (ack.seq, len(await letters(consumer))) == (5, 2)
    [again] = await consumer.fetch()
    assert (again.message.value, dict(again.message.headers)) == (b"bad", {"by": "ada"})
    assert again.delivery_count == 1
    with pytest.raises(NotFoundError):
        await consumer.requeue(found[1])
    assert (await consumer.requeue(found[2])).seq == 6
    assert present(await orders.get(6)).value == large
    with pytest.raises(InvalidArgumentError):
        await orders.consumer("d", dead_letter="orders").info()

"""`holdfast migrate jetstream`, from a real JetStream to a tenant that a gateway then serves."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client
from nats.js.api import RetentionPolicy

from tests.support.holdfast_up import RunningUp, running_up
from tests.support.nats_server import NatsServer, running_nats_server

STREAMS = ("EMPTY", "KV_settings", "ORDERS", "QUEUE")
GONE = {1, 2, 3, 10, 11, 40, 119, 120}


async def fill(url: str) -> None:
    """Make streams with gaps everywhere, headers, a bucket, and consumers in the middle."""
    client = await nats.connect(url)
    js = client.jetstream()
    await js.add_stream(name="ORDERS", subjects=["orders.>"], metadata={"team": "blue"})
    for number in range(1, 121):
        headers = {"Nats-Msg-Id": f"m{number}", "Note": "a b"} if number % 3 else None
        await js.publish(f"orders.{number % 7}", b"%d" % number, headers=headers)
    for seq in GONE:
        await js.delete_msg("ORDERS", seq)
    await work_off(client, "ORDERS", "orders.>", 20)
    bucket = await js.create_key_value(bucket="settings", history=2)
    for number in range(60):
        await bucket.put(f"key-{number % 10}", b"%d" % number)
    await bucket.delete("key-3")
    await js.add_stream(name="EMPTY", subjects=["empty"])
    for _ in range(3):
        await js.publish("empty", b"")
    await js.purge_stream("EMPTY")
    await js.add_stream(name="QUEUE", subjects=["q"], retention=RetentionPolicy.WORK_QUEUE)
    for number in range(10):
        await js.publish("q", b"%d" % number)
    await work_off(client, "QUEUE", "q", 4)
    await client.close()


async def work_off(client: Client, stream: str, subject: str, count: int) -> None:
    js = client.jetstream()
    worker = await js.pull_subscribe(subject, durable="workers", stream=stream)
    for message in await worker.fetch(count):
        await message.ack_sync()


async def everything(url: str) -> dict[str, Any]:
    """Return all that a JetStream tells of the streams: states, messages, positions."""
    client = await nats.connect(url)
    js = client.jetstream()
    found: dict[str, Any] = {}
    for name in STREAMS:
        info = await js.stream_info(name)
        state = info.state
        rows = []
        for seq in range(state.first_seq, state.last_seq + 1):
            answer = await client.request(
                f"$JS.API.STREAM.MSG.GET.{name}", json.dumps({"seq": seq}).encode(), timeout=5
            )
            message = json.loads(answer.data).get("message")
            if message is not None:
                rows.append({**message, "time": milliseconds(message["time"])})
        found[name] = (
            (state.messages, state.first_seq, state.last_seq, state.bytes),
            info.config.subjects,
            rows,
        )
    for name in ("ORDERS", "QUEUE"):
        consumer = await js.consumer_info(name, "workers")
        assert consumer.ack_floor is not None
        found[f"{name} workers"] = (consumer.ack_floor.stream_seq, consumer.num_pending)
    await client.close()
    return found


def milliseconds(time: str) -> str:
    """Return a time of JetStream's as holdfast keeps it: both leave zeros at the end out."""
    seconds, _, fraction = time.removesuffix("Z").partition(".")
    return f"{seconds}.{fraction:0<3.3}"


def migrated(cluster: RunningUp, source: NatsServer, *options: str) -> dict[str, dict[str, Any]]:
    report = cluster.json("migrate", "jetstream", source.url, *options)
    return {row["stream"]: row for row in report["streams"]}


def test_a_jetstream_moves_in_as_it_is(tmp_path: Path) -> None:
    store = ("-js", "-sd", str(tmp_path / "store"))
    with (
        running_nats_server(tmp_path / "source", *store) as source,
        running_up(tmp_path / "data", "--jetstream", "--servers", "1") as cluster,
    ):
        asyncio.run(fill(source.url))
        planned = migrated(cluster, source, "--dry-run")
        assert {row["state"] for row in planned.values()} == {"would be copied"}
        assert planned["KV_settings"]["kind"] == "bucket"

        held = migrated(cluster, source, "--hold")
        assert held["ORDERS"]["copied"] == 120 - len(GONE)
        asyncio.run(publish_one_more(source.url))
        done = migrated(cluster, source)
        assert {row["state"] for row in done.values()} == {"copied, and served"}
        assert (done["ORDERS"]["copied"], done["ORDERS"]["consumers"]) == (1, 1)

        assert asyncio.run(everything(cluster.nats)) == asyncio.run(everything(source.url))
        refused = cluster.holdfast("migrate", "jetstream", source.url, "ORDERS")
        assert refused.returncode == 1
        assert b"a stream of this name is there already" in refused.stderr
        asyncio.run(work_on(cluster.nats))


async def publish_one_more(url: str) -> None:
    """Change the source between two runs: a new message, and one less."""
    client = await nats.connect(url)
    await client.jetstream().publish("orders.9", b"late")
    await client.jetstream().delete_msg("ORDERS", 50)
    await client.close()


async def work_on(url: str) -> None:
    """Go on where the source was left: the queue, and a publisher's retry."""
    client = await nats.connect(url)
    js = client.jetstream()
    worker = await js.pull_subscribe_bind("workers", "QUEUE")
    assert [message.data for message in await worker.fetch(2)] == [b"4", b"5"]
    retried = await js.publish("orders.4", b"119", headers={"Nats-Msg-Id": "m118"})
    assert (retried.seq, retried.duplicate) == (118, True)
    assert (await js.publish("orders.1", b"new")).seq == 122
    await client.close()

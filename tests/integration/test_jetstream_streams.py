"""Streams and buckets of JetStream as nats-py uses them: a gateway in front of a cluster, without
JetStream in nats-server."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import datetime
import json
from collections.abc import Iterator
from typing import Any

import nats.errors
import pytest
from nats.aio.client import Client
from nats.js.api import (
    ConsumerConfig,
    DiscardPolicy,
    RePublish,
    StorageType,
    StreamConfig,
    SubjectTransform,
)
from nats.js.errors import (
    APIError,
    BadRequestError,
    KeyNotFoundError,
    KeyWrongLastSequenceError,
    NoStreamResponseError,
    NotFoundError,
)

from holdfast.client import connect
from tests.support.cluster import TENANT
from tests.support.jetstream import JetStreamWorld, running_jetstream
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JetStreamWorld]:
    with running_jetstream(tmp_path_factory.mktemp("jetstream")) as world:
        world.start_gateway()
        yield world


async def _answer(
    client: Client, subject: str, payload: bytes = b"", headers: dict[str, str] | None = None
) -> dict[str, Any]:
    found = await client.request(subject, payload, timeout=5.0, headers=headers)
    answer: dict[str, Any] = json.loads(found.data)
    return answer


async def test_the_account_has_no_streams_and_the_numbers_clients_need(
    world: JetStreamWorld,
) -> None:
    async with world.client() as client:
        info = await _answer(client, "$JS.API.INFO")
        assert info["type"] == "io.nats.jetstream.api.v1.account_info_response"
        assert info["limits"]["max_streams"] == -1
        assert info["api"]["level"] >= 1
        with pytest.raises(nats.errors.NoRespondersError):
            await client.request("$JS.API.STREAM.TEMPLATE.NAMES", b"", 10.0)


async def test_a_stream_is_created_told_changed_and_deleted(world: JetStreamWorld) -> None:
    async with world.client() as client:
        js = client.jetstream()
        with pytest.raises(NotFoundError):
            await js.stream_info("life")
        created = await js.add_stream(name="life", subjects=["life.>"], max_msgs=10)
        assert created.did_create and created.state.first_seq == 0
        assert (await js.add_stream(name="life", subjects=["life.>"], max_msgs=10)).did_create
        with pytest.raises(BadRequestError) as other:
            await js.add_stream(name="life", subjects=["life.>"], max_msgs=11)
        assert other.value.err_code == 10058
        with pytest.raises(BadRequestError) as overlap:
            await js.add_stream(name="alive", subjects=["life.one"])
        assert overlap.value.err_code == 10065
        for number in range(5):
            await js.publish("life.one", str(number).encode())
        updated = await js.update_stream(name="life", subjects=["life.*", "x"], max_msgs=3)
        assert updated.config.max_msgs == 3 and updated.state.messages == 3
        assert (await js.publish("x", b"now")).seq == 6
        with pytest.raises(NoStreamResponseError):
            await js.publish("life.one.two", b"not any more")
        assert "life" in [each.config.name for each in await js.streams_info()]
        assert await js.find_stream_name_by_subject("life.5") == "life"
        assert await js.delete_stream("life")
        with pytest.raises(NotFoundError):
            await js.stream_info("life")
        with pytest.raises(NoStreamResponseError):
            await js.publish("life.one", b"gone")
        again = await js.add_stream(name="life", subjects=["life.>"])
        assert again.state.last_seq == 0
        assert (await js.publish("life.one", b"anew")).seq == 1


async def test_what_is_published_is_stored_byte_for_byte(world: JetStreamWorld) -> None:
    async with world.client() as client:
        js = client.jetstream()
        await js.add_stream(name="bytes", subjects=["bytes.>"])
        headers = b"NATS/1.0\r\nb: 2\r\na:  1\r\nb: 3\r\nodd name: x\r\n\r\n"
        payload = bytes(range(256))
        inbox = client.new_inbox()
        replies = await client.subscribe(inbox)
        await client.flush()
        line = f"HPUB bytes.1 {inbox} {len(headers)} {len(headers) + len(payload)}\r\n"
        await client._send_command(line.encode() + headers + payload + b"\r\n")
        await client._flush_pending()
        assert json.loads((await replies.next_msg(5.0)).data) == {"stream": "bytes", "seq": 1}
        get = b'{"seq": 1}'
        found = (await _answer(client, "$JS.API.STREAM.MSG.GET.bytes", get))["message"]
        assert base64.b64decode(found["hdrs"]) == headers
        assert base64.b64decode(found["data"]) == payload
        assert found["subject"] == "bytes.1" and found["seq"] == 1
        info = await js.stream_info("bytes", subjects_filter=">")
        size = 30 + len("bytes.1") + len(payload) + len(headers) + 4
        assert info.state.bytes == size and info.state.subjects == {"bytes.1": 1}


async def test_a_publishers_messages_keep_their_order(world: JetStreamWorld) -> None:
    async with world.client() as client:
        js = client.jetstream()
        await js.add_stream(name="order", subjects=["order"], allow_direct=True)
        large = b"x" * 1_010_000
        values = [large if number in (7, 8, 40) else b"%d" % number for number in range(300)]
        acks = [await js.publish_async("order", value) for value in values]
        found = await asyncio.gather(*acks)
        assert [ack.seq for ack in found] == list(range(1, 301))
        assert (await js.get_msg("order", 8, direct=True)).data == large
        assert (await js.get_msg("order", 10)).data == b"9"


async def test_messages_of_all_kinds_keep_their_order_in_a_burst(world: JetStreamWorld) -> None:
    async with world.client() as client:
        js = client.jetstream()
        await js.add_stream(name="burst", subjects=["burst.*"], max_msgs=250, discard="new")
        inbox = client.new_inbox()
        replies = await client.subscribe(f"{inbox}.*")
        kinds = [b"", b"NATS/1.0\r\na: 1\r\n\r\n", b"NATS/1.0\r\nNats-Msg-Id: %d\r\n\r\n"]
        lines = []
        for number in range(300):
            # Most are plain; some of them are not answered.
            block = kinds[{0: 2, 1: 1}.get(number % 10, 0)].replace(b"%d", b"%d" % number)
            value = b"%d" % number
            reply = "" if number % 50 == 7 else f" {inbox}.{number}"
            sizes = f"{len(block)} {len(block) + len(value)}" if block else f"{len(value)}"
            line = f"{'H' if block else ''}PUB burst.{number % 3}{reply} {sizes}\r\n"
            lines.append(line.encode() + block + value + b"\r\n")
        await client._send_command(b"".join(lines))
        await client._flush_pending()
        found = {}
        for _ in range(294):
            message = await replies.next_msg(5.0)
            found[int(message.subject.rpartition(".")[2])] = json.loads(message.data)
        answered = [number for number in range(300) if number % 50 != 7]
        assert sorted(found) == answered
        for number, answer in found.items():
            if number < 250:
                assert answer == {"stream": "burst", "seq": number + 1}
            else:
                assert answer["error"]["err_code"] == 10077, answer
        last = await js.get_msg("burst", 250)
        assert (last.data, last.subject) == (b"249", "burst.0")


async def test_expectations_and_message_ids_are_the_owners_to_check(
    world: JetStreamWorld,
) -> None:
    async with world.client() as client:
        js = client.jetstream()
        await js.add_stream(name="expect", subjects=["expect.*"])

        async def refused(headers: dict[str, str], subject: str = "expect.a") -> tuple[int, str]:
            with pytest.raises(APIError) as error:
                await js.publish(subject, b"", headers=headers)
            return error.value.err_code or 0, error.value.description or ""

        first = await js.publish("expect.a", b"1", headers={"Nats-Msg-Id": "one"})
        again = await js.publish("expect.b", b"2", headers={"Nats-Msg-Id": "one"})
        assert (again.seq, again.duplicate) == (first.seq, True)
        long_id = {"Nats-Msg-Id": "x" * 1000}
        assert (await js.publish("expect.a", b"", headers=long_id)).seq == 2
        assert (await js.publish("expect.a", b"", headers=long_id)).duplicate
        assert await refused({"Nats-Expected-Stream": "other"}) == (
            10060,
            "expected stream does not match",
        )
        assert await refused({"Nats-Expected-Last-Sequence": "1"}) == (
            10071,
            "wrong last sequence: 2",
        )
        assert (
            await refused({"Nats-Expected-Last-Msg-Id": "one"})
            == (
                10070,
                f"wrong last msg ID: {'x' * 1000}",
            )
            or (await refused({"Nats-Expected-Last-Msg-Id": "one"}))[0] == 10070
        )
        assert await refused({"Nats-Expected-Last-Subject-Sequence": "1"}) == (
            10071,
            "wrong last sequence: 2",
        )
        assert await refused({"Nats-Expected-Last-Subject-Sequence": "7"}, "expect.new") == (
            10071,
            "wrong last sequence: 0",
        )
        assert (await refused({"Nats-TTL": "1s"}))[0] == 10166
        assert (await refused({"Nats-Rollup": "sub"}))[0] == 10111
        expected = {
            "Nats-Expected-Last-Subject-Sequence": "2",
            "Nats-Expected-Last-Subject-Sequence-Subject": "expect.>",
        }
        assert (await js.publish("expect.c", b"", headers=expected)).seq == 3


async def test_limits_refuse_or_remove_and_rollups_clear(world: JetStreamWorld) -> None:
    async with world.client() as client:
        js = client.jetstream()
        await js.add_stream(
            StreamConfig(
                name="limits",
                subjects=["limits.*"],
                max_msgs=3,
                max_msg_size=100,
                discard=DiscardPolicy.NEW,
                allow_rollup_hdrs=True,
            )
        )
        for number in range(3):
            await js.publish(f"limits.{number % 2}", b"v")
        with pytest.raises(APIError) as full:
            await js.publish("limits.0", b"v")
        assert full.value.err_code == 10077
        assert full.value.description == "maximum messages exceeded"
        with pytest.raises(APIError) as large:
            await js.publish("limits.0", b"x" * 101)
        assert large.value.err_code == 10054
        await js.purge_stream("limits", keep=2)
        assert (await js.publish("limits.0", b"v", headers={"Nats-Rollup": "all"})).seq == 4
        info = await js.stream_info("limits")
        assert (info.state.messages, info.state.first_seq, info.state.last_seq) == (1, 4, 4)
        await js.update_stream(dataclasses.replace(info.config, sealed=True))
        with pytest.raises(APIError) as sealed:
            await js.publish("limits.0", b"v")
        assert sealed.value.err_code == 10109


async def test_messages_are_got_directly_alone_in_batches_and_by_several_subjects(
    world: JetStreamWorld,
) -> None:
    async with world.client() as client:
        js = client.jetstream()
        await js.add_stream(name="direct", subjects=["direct.*"], allow_direct=True)
        for number in range(6):
            await js.publish(f"direct.{number % 3}", b"%d" % number)
        assert (await js.get_msg("direct", 2, direct=True)).data == b"1"
        assert (await js.get_last_msg("direct", "direct.0", direct=True)).data == b"3"
        # Many at once: twice the same, one that does not exist, a filter, and one whose value is
        # read in parts.
        await js.publish("direct.7", b"large" * 200_000)
        wanted = ["direct.1", "direct.1", "direct.9", "direct.*", "direct.7"]
        answers = await asyncio.gather(
            *(
                client.request(f"$JS.API.DIRECT.GET.direct.{subject}", timeout=10.0)
                for subject in wanted
            )
        )
        assert [len(answer.data) for answer in answers] == [1, 1, 0, 1_000_000, 1_000_000]
        assert answers[0].headers == {
            "Nats-Stream": "direct",
            "Nats-Subject": "direct.1",
            "Nats-Sequence": "5",
            "Nats-Time-Stamp": (answers[0].headers or {})["Nats-Time-Stamp"],
        }
        assert (answers[2].headers or {})["Status"] == "404"
        await js.delete_msg("direct", 7)

        async def messages(body: dict[str, Any]) -> list[tuple[str, bytes, str]]:
            inbox = client.new_inbox()
            subscription = await client.subscribe(inbox)
            await client.publish("$JS.API.DIRECT.GET.direct", json.dumps(body).encode(), inbox)
            found = []
            while True:
                message = await subscription.next_msg(5.0)
                headers = message.headers or {}
                found.append(
                    (
                        headers.get("Nats-Sequence") or headers["Status"],
                        message.data,
                        headers.get("Nats-Num-Pending", ""),
                    )
                )
                if "Status" in headers:
                    return found

        assert await messages({"seq": 2, "batch": 3}) == [
            ("2", b"1", "4"),
            ("3", b"2", "3"),
            ("4", b"3", "2"),
            ("204", b"", "2"),
        ]
        assert await messages({"multi_last": ["direct.0", "direct.2"]}) == [
            ("4", b"3", "1"),
            ("6", b"5", "0"),
            ("204", b"", "0"),
        ]
        assert await messages({"multi_last": ["direct.0"], "up_to_seq": 3}) == [
            ("1", b"0", "0"),
            ("204", b"", "0"),
        ]
        assert await messages({"multi_last": ["nothing"]}) == [("404", b"", "")]
        # More than the gateway keeps before it sends the first.
        large = [bytes([number]) * 900_000 for number in range(6)]
        for number, value in enumerate(large):
            await js.publish(f"direct.{number}", value)
        found = await messages({"multi_last": ["direct.*"]})
        assert [value for _, value, _ in found] == [*large, b""]
        assert [pending for *_, pending in found] == [*"543210", "0"]
        assert await messages({"seq": 1, "last_by_subj": "x"}) == [("408", b"", "")]
        await js.update_stream(name="direct", subjects=["direct.*"], allow_direct=False)
        with pytest.raises(nats.errors.NoRespondersError):
            await client.request("$JS.API.DIRECT.GET.direct", b'{"seq":1}', 10.0)


async def test_atomic_batches_are_stored_whole_or_not_at_all(world: JetStreamWorld) -> None:
    async with world.client() as client:
        js = client.jetstream()
        await js.add_stream(name="batch", subjects=["batch.*"], allow_atomic=True)
        advisories = await client.subscribe("$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.batch")
        await client.flush()

        async def send(batch: str, number: int, **more: str) -> dict[str, Any]:
            headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
            headers |= {name.replace("_", "-"): value for name, value in more.items()}
            found = await client.request(f"batch.{number}", b"%d" % number, 5.0, headers=headers)
            answer: dict[str, Any] = json.loads(found.data) if found.data else {}
            return answer

        assert await send("one", 1) == {} and await send("one", 2) == {}
        assert (await js.stream_info("batch")).state.messages == 0
        done = await send("one", 3, Nats_Batch_Commit="1")
        assert done == {"stream": "batch", "seq": 3, "batch": "one", "count": 3}

        assert await send("two", 1) == {}
        gap = await send("two", 3)
        assert gap["error"]["err_code"] == 10176
        told = json.loads((await advisories.next_msg(5.0)).data)
        assert told["batch"] == "two" and told["reason"] == "incomplete"

        assert await send("three", 1) == {}
        wrong = await send(
            "three",
            2,
            Nats_Batch_Commit="1",
            Nats_Expected_Last_Subject_Sequence="9",
        )
        assert wrong["error"]["err_code"] == 10071
        assert (await js.stream_info("batch")).state.last_seq == 3

        assert await send("four", 1) == {}
        end = await send("four", 2, Nats_Batch_Commit="eob")
        assert (end["seq"], end["count"]) == (4, 1)


async def test_counters_count(world: JetStreamWorld) -> None:
    async with world.client() as client:
        js = client.jetstream()
        await js.add_stream(name="counter", subjects=["counter.*"], allow_msg_counter=True)

        async def count(increment: str, subject: str = "counter.a") -> dict[str, Any]:
            found = await client.request(subject, b"", 5.0, headers={"Nats-Incr": increment})
            answer: dict[str, Any] = json.loads(found.data)
            return answer

        assert await count("+5") == {"stream": "counter", "seq": 1, "val": "5"}
        assert (await count("-7"))["val"] == "-2"
        assert (await count("100000000000000000000"))["val"] == "99999999999999999998"
        assert (await count("1", "counter.b"))["val"] == "1"
        assert (await count("x"))["error"]["err_code"] == 10171
        found = await js.get_last_msg("counter", "counter.a")
        assert found.data == b'{"val":"99999999999999999998"}'


async def test_schedules_publish_when_they_are_due(world: JetStreamWorld) -> None:
    async with world.client() as client:
        js = client.jetstream()
        await js.add_stream(
            StreamConfig(name="plan", subjects=["plan.>"], allow_msg_schedules=True)
        )
        heard = await js.subscribe("plan.out.*", ordered_consumer=True)

        async def schedule(name: str, pattern: str, target: str, **more: str) -> None:
            headers = {"Nats-Schedule": pattern, "Nats-Schedule-Target": target, **more}
            await js.publish(f"plan.{name}", name.encode(), headers=headers)

        soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=0.3)
        await schedule("once", f"@at {soon.isoformat()}", "plan.out.once")
        await schedule("every", "@every 1s", "plan.out.every")
        copies = []
        while [each.subject for each in copies].count("plan.out.every") < 2 or len(copies) < 3:
            copies.append(await heard.next_msg(5.0))
        [once] = [each for each in copies if each.subject == "plan.out.once"]
        assert once.data == b"once" and (once.headers or {})["Nats-Scheduler"] == "plan.once"
        with pytest.raises(NotFoundError):
            await js.get_last_msg("plan", "plan.once")
        stop = {"Nats-Scheduler": "plan.every", "Nats-Schedule-Next": "purge"}
        await js.publish("plan.out.stop", b"", headers=stop)
        with pytest.raises(NotFoundError):
            await js.get_last_msg("plan", "plan.every")
        with pytest.raises(APIError) as refused:
            await schedule("bad", "@every 1ms", "plan.out.bad")
        assert refused.value.err_code == 10189


async def test_what_is_stored_is_republished_and_subjects_are_transformed(
    world: JetStreamWorld,
) -> None:
    async with world.client() as client:
        js = client.jetstream()
        heard = await client.subscribe("again.>")
        await client.flush()
        await js.add_stream(
            StreamConfig(
                name="mapped",
                subjects=["mapped.>"],
                subject_transform=SubjectTransform(src="mapped.*", dest="stored.{{wildcard(1)}}"),
                republish=RePublish(src="stored.*", dest="again.{{wildcard(1)}}"),
            )
        )
        await js.publish("mapped.a", b"1", headers={"x": "y"})
        await js.publish("mapped.a", b"2")
        messages = [await heard.next_msg(5.0) for _ in range(2)]
        assert [each.data for each in messages] == [b"1", b"2"]
        headers = messages[1].headers or {}
        assert (messages[0].headers or {})["x"] == "y"
        assert headers["Nats-Subject"] == "stored.a" and messages[1].subject == "again.a"
        assert (headers["Nats-Sequence"], headers["Nats-Last-Sequence"]) == ("2", "1")
        assert (await js.get_msg("mapped", 1)).subject == "stored.a"


async def test_messages_are_deleted_purged_and_listed_as_deleted(world: JetStreamWorld) -> None:
    async with world.client() as client:
        js = client.jetstream()
        await js.add_stream(name="remove", subjects=["remove.*"])
        for number in range(8):
            await js.publish(f"remove.{number % 2}", b"v")
        assert await js.delete_msg("remove", 3)
        delete = "$JS.API.STREAM.MSG.DELETE.remove"
        assert (await _answer(client, delete, b'{"seq":3}'))["error"]["err_code"] == 10043
        assert (await _answer(client, delete, b'{"seq":99}'))["error"]["err_code"] == 10057
        assert (await _answer(client, delete, b"{}"))["error"]["err_code"] == 10003
        details = b'{"deleted_details":true}'
        info = await _answer(client, "$JS.API.STREAM.INFO.remove", details)
        assert (info["state"]["deleted"], info["state"]["num_deleted"]) == ([3], 1)
        purged = await _answer(
            client, "$JS.API.STREAM.PURGE.remove", b'{"filter":"remove.0","keep":1}'
        )
        assert purged["purged"] == 2
        assert await js.purge_stream("remove", seq=8)
        state = (await js.stream_info("remove")).state
        assert (state.messages, state.first_seq, state.last_seq) == (1, 8, 8)


async def test_large_messages_that_are_due_again_come_page_by_page(world: JetStreamWorld) -> None:
    async with world.client() as client:
        js = client.jetstream()
        await js.add_stream(name="due", subjects=["due.*"])
        # Some travel in one piece, and some are kept in chunks.
        sizes = [1_040_000, 300_000, 10, 900_000] * 6
        for number, size in enumerate(sizes):
            await js.publish(f"due.{number}", bytes([number]) * size, timeout=10.0)
        config = ConsumerConfig(ack_wait=2.0, max_deliver=2)
        worker = await js.pull_subscribe("due.*", durable="d", config=config)

        async def all_of_them() -> list[tuple[int, int]]:
            found: list[tuple[int, int]] = []
            while len(found) < len(sizes):
                for each in await worker.fetch(len(sizes) - len(found), timeout=20.0):
                    assert each.data == bytes([each.data[0]]) * sizes[each.data[0]]
                    found.append((each.data[0], each.metadata.num_delivered))
                    if each.metadata.num_delivered == 2:
                        await each.ack()
            return found

        order = list(range(len(sizes)))
        assert await all_of_them() == [(number, 1) for number in order]
        assert sorted(await all_of_them()) == [(number, 2) for number in order]
        info = await js.consumer_info("due", "d")
        assert info.num_ack_pending == 0


async def test_a_bucket_keeps_history_and_compares(world: JetStreamWorld) -> None:
    async with world.client() as client:
        js = client.jetstream()
        kv = await js.create_key_value(bucket="bucket", history=2, direct=True)
        assert await kv.put("a", b"1") == 1
        assert await kv.create("b", b"1") == 2
        with pytest.raises(KeyWrongLastSequenceError):
            await kv.create("b", b"2")
        assert await kv.update("a", b"2", last=1) == 3
        with pytest.raises(KeyWrongLastSequenceError):
            await kv.update("a", b"3", last=1)
        found = await kv.get("a")
        assert (found.value, found.revision) == (b"2", 3)
        assert (await kv.get("a", revision=1)).value == b"1"
        await kv.delete("a")
        with pytest.raises(KeyNotFoundError) as deleted:
            await kv.get("a")
        assert deleted.value.op == "DEL"
        assert await kv.create("a", b"again") == 5
        await kv.purge("b")
        with pytest.raises(KeyNotFoundError):
            await kv.get("c")
        status = await kv.status()
        assert (status.values, status.history) == (3, 2)
        watcher = await kv.watch("a")
        first = await watcher.updates(timeout=5.0)
        assert first is not None and (first.value, first.revision) == (b"again", 5)
        assert await watcher.updates(timeout=5.0) is None
        await kv.put("a", b"more")
        told = await watcher.updates(timeout=5.0)
        assert told is not None and told.value == b"more"
        await watcher.stop()
        assert await kv.keys() == ["a"]
        assert [each.value for each in await kv.history("a")] == [b"again", b"more"]
        assert await js.delete_key_value("bucket")


async def test_an_object_is_stored_in_pieces_and_got_back(world: JetStreamWorld) -> None:
    async with world.client() as client:
        js = client.jetstream()
        objects = await js.create_object_store("objects")
        data = bytes(range(256)) * 2000
        await objects.put("large", data)
        assert (await objects.get("large")).data == data
        assert [each.name for each in await objects.list()] == ["large"]
        assert await js.delete_object_store("objects")


async def test_a_native_client_sees_the_stream_and_writes_to_it(world: JetStreamWorld) -> None:
    async with world.client() as client, connect(world.nats.url, tenant=TENANT) as hf:
        js = client.jetstream()
        settings = StreamConfig(storage=StorageType.MEMORY, allow_direct=True)
        await js.add_stream(settings, name="native", subjects=["native.*"])
        await js.publish("native.a", b"1", headers={"k": "v"})
        stream = hf.stream("native")
        message = await stream.get(1)
        assert message is not None and message.subject == "native.a"
        assert dict(message.headers) == {"k": "v"}
        await stream.append(b"2", subject="native.b", headers={"h": "text"})
        found = await js.get_msg("native", 2)
        assert found.data == b"2" and found.headers == {"h": "text"}
        await stream.append(b"3")
        without = await js.get_msg("native", 3, direct=True)
        assert (without.data, without.subject) == (b"3", "")


async def test_what_cannot_be_deleted_is_told_as_nats_server_does(world: JetStreamWorld) -> None:
    missing, gone = (400, 10043, "sequence {} not found"), (500, 10057, "no message found")
    beyond = (500, 10057, "stream store EOF")
    async with world.client() as client:
        js = client.jetstream()
        for storage in ("file", "memory"):
            name = f"deleted-{storage}"
            await js.add_stream(name=name, subjects=[name], storage=StorageType(storage))
            for _ in range(6):
                await js.publish(name, b"")
            expected = {3: missing, 1: gone, 6: missing, 7: beyond, 0: gone}
            for seq, told in expected.items():
                body = b'{"seq":%d}' % seq
                for _ in range(2):
                    answer = await _answer(client, f"$JS.API.STREAM.MSG.DELETE.{name}", body)
                code, err_code, text = told if storage == "file" else missing
                error = {"code": code, "err_code": err_code, "description": text.format(seq)}
                assert answer["error"] == error, (storage, seq)


async def test_a_new_stream_takes_a_store_that_nobody_has_used_or_an_earlier_try_has_left(
    world: JetStreamWorld,
) -> None:
    async with world.client() as client, connect(world.nats.url, tenant=TENANT) as hf:
        js = client.jetstream()
        await hf.stream("written").append(b"native")
        await hf.stream("limited").configure(max_messages=7)
        await hf.stream("worked").consumer("w").fetch(max_wait_seconds=0)
        # The creation of a stream ended before the catalogue had it.
        await hf.serving_stream("left").begin_serving(1 << 60, max_messages=1)
        stores = {"written": "written.2", "limited": "limited.2", "worked": "worked.2"}
        for name in (*stores, "left", "left"):
            store = stores.get(name, name)
            made = await js.add_stream(name=name, subjects=[f"{name}.*"])
            assert made.state.messages == 0, name
            assert (await js.publish(f"{name}.x", b"1")).seq == 1
            assert (await js.publish(f"{name}.x", b"2")).seq == 2
            found = await hf.stream(store).get(2)
            assert found is not None and found.value == b"2", name
            assert await js.delete_stream(name)
        assert (await hf.stream("limited").config()).max_messages == 7
        found = await hf.stream("written").get(1)
        assert found is not None and found.value == b"native"


async def test_equal_creations_at_once_make_one_stream(world: JetStreamWorld) -> None:
    async with world.client() as client, connect(world.nats.url, tenant=TENANT) as hf:
        js = client.jetstream()
        each = [js.add_stream(name="once", subjects=["once"]) for _ in range(20)]
        assert all(made.did_create for made in await asyncio.gather(*each))
        assert (await js.publish("once", b"1")).seq == 1
        assert [store.name async for store in hf.stores(prefix="once")] == ["once"]


async def test_hostile_requests_are_answered_and_harm_nobody(world: JetStreamWorld) -> None:
    async with world.client() as client:
        for payload in (b"", b"[", b"7", b'{"name":7}', b"{" * 3000, b"\xff", b'{"x":1}'):
            for verb in ("STREAM.CREATE.evil", "STREAM.UPDATE.evil", "STREAM.LIST"):
                await _answer(client, f"$JS.API.{verb}", payload)
            for verb in ("STREAM.MSG.GET.evil", "STREAM.PURGE.evil", "STREAM.INFO.evil"):
                answer = await _answer(client, f"$JS.API.{verb}", payload)
                assert "error" in answer
        await client.publish("$JS.API.INFO", b"", "x")

        async def answers() -> bool:
            return "limits" in await _answer(client, "$JS.API.INFO")

        await eventually(answers, "the gateway answers")

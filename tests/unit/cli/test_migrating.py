"""What `holdfast migrate` makes of what a JetStream tells of itself, be it nonsense."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from holdfast.cli.migrating.plan import plan_consumer, plan_stream
from holdfast.cli.migrating.source import WINDOW, JetStreamSource, SourceError, SourceMessage
from holdfast.gateway.jetstream.wire.memory import MemoryNats
from holdfast.gateway.jetstream.wire.ports import PortMessage

TIME = "2026-11-22T01:02:03.456789Z"
TIME_MS = 1_795_309_323_456
BLOCK = b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n"


def info(**config: Any) -> dict[str, Any]:
    return {
        "config": {"name": "ORDERS", "subjects": ["orders.>"], "num_replicas": 1, **config},
        "created": TIME,
        "state": {"messages": 3, "bytes": 90, "first_seq": 5, "last_seq": 9, "consumer_count": 1},
    }


def test_a_stream_keeps_its_configuration() -> None:
    plan = plan_stream(info(max_msgs=100, metadata={"team": "blue"}, first_seq=5), ("hf.>",))
    assert (plan.name, plan.kind, plan.refusal, plan.notes) == ("ORDERS", "stream", "", ())
    assert (plan.state.first_seq, plan.state.last_seq, plan.created_ms) == (5, 9, TIME_MS)
    config = plan.config.to_json()
    assert (config["max_msgs"], config["metadata"], config["first_seq"]) == (
        100,
        {"team": "blue"},
        5,
    )


def test_buckets_and_object_stores_are_told_apart() -> None:
    assert plan_stream(info(name="KV_settings", subjects=["$KV.settings.>"]), ()).kind == "bucket"
    assert plan_stream(info(name="OBJ_files", subjects=["$O.files.C.>"]), ()).kind == "object store"


def test_what_only_a_cluster_of_nats_servers_has_is_noted() -> None:
    plan = plan_stream(info(num_replicas=3, placement={"cluster": "east"}), ())
    assert plan.config.num_replicas == 1
    assert plan.refusal == ""
    assert len(plan.notes) == 2
    mirror = info(mirror={"name": "OTHER"})
    del mirror["config"]["subjects"]
    assert "mirror" in plan_stream(mirror, ()).notes[0]


def test_a_stream_that_the_gateway_would_refuse_is_refused() -> None:
    assert "subject" in plan_stream(info(subjects=["hf.x"]), ("hf.>",)).refusal


def test_a_sealed_stream_stays_sealed() -> None:
    plan = plan_stream(info(sealed=True), ())
    assert (plan.refusal, plan.config.sealed) == ("", True)


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {**info(), "state": None},
        {**info(), "state": {**info()["state"], "messages": 10}},
        {**info(), "created": "yesterday"},
        {**info(), "config": []},
    ],
)
def test_a_stream_that_makes_no_sense_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="stream"):
        plan_stream(broken, ())


def test_durable_consumers_keep_their_positions_and_others_are_left_out() -> None:
    told = {
        "name": "workers",
        "created": TIME,
        "config": {"durable_name": "workers", "ack_policy": "explicit", "num_replicas": 3},
        "ack_floor": {"consumer_seq": 12, "stream_seq": 7},
    }
    plan = plan_consumer(told)
    assert plan is not None
    assert (plan.floor_consumer_seq, plan.floor_stream_seq) == (12, 7)
    assert plan.config.num_replicas == 1
    assert plan_consumer({**told, "config": {"ack_policy": "none"}}) is None
    with pytest.raises(ValueError, match="consumer"):
        plan_consumer({**told, "ack_floor": None})


class AnsweringJetStream:
    """Answers requests of one stream's messages as JetStream does."""

    def __init__(self, messages: dict[int, bytes]) -> None:
        self.messages = messages
        self.asked = 0

    def answer(self, request: dict[str, Any]) -> bytes:
        self.asked += 1
        seq = request["seq"]
        if "next_by_subj" in request:
            seq = min((each for each in self.messages if each >= seq), default=0)
        if seq not in self.messages:
            return b'{"error":{"code":404,"err_code":10037,"description":"no message found"}}'
        message = {
            "subject": "orders.a",
            "seq": seq,
            "hdrs": base64.b64encode(BLOCK).decode(),
            "data": base64.b64encode(self.messages[seq]).decode(),
            "time": TIME,
        }
        return json.dumps({"message": message}).encode()


async def read(served: AnsweringJetStream, first: int, last: int) -> list[SourceMessage]:
    nats = MemoryNats()
    server, client = nats.connect_client("server"), nats.connect_client("client")

    def heard(message: PortMessage) -> None:
        server.publish(message.reply, served.answer(json.loads(message.payload)))

    await server.subscribe("$JS.API.STREAM.MSG.GET.ORDERS", heard)
    await server.flush()
    found = [
        message
        async for messages in JetStreamSource(client).messages("ORDERS", first, last)
        for message in messages
    ]
    await client.close()
    await server.close()
    return found


def test_messages_come_in_order_with_their_blocks_and_large_gaps_are_leapt_over() -> None:
    seqs = [1, 2, 5, WINDOW * 20, WINDOW * 20 + 3]
    served = AnsweringJetStream({seq: b"%d" % seq for seq in seqs})
    found = asyncio.run(read(served, 1, WINDOW * 20 + 3))
    assert [each.seq for each in found] == seqs
    assert found[2] == SourceMessage(5, TIME_MS, "orders.a", BLOCK, b"5")
    assert served.asked < 3 * WINDOW


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"[]",
        b"nonsense",
        b'{"message":{"seq":1}}',
        b'{"message":{"seq":"1","subject":"a","time":"%b"}}' % TIME.encode(),
        b'{"message":{"seq":1,"subject":"a","time":"%b","hdrs":"!"}}' % TIME.encode(),
        b'{"message":{"seq":1,"subject":"a","time":"%b","hdrs":"bm9uZQ=="}}' % TIME.encode(),
        b'{"error":{"code":400,"description":"no"}}',
    ],
)
def test_an_answer_that_is_none_ends_the_copy_with_an_error(said: bytes) -> None:
    class Hostile(AnsweringJetStream):
        def answer(self, request: dict[str, Any]) -> bytes:
            return said

    with pytest.raises(SourceError):
        asyncio.run(read(Hostile({}), 1, 3))

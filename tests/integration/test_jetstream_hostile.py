"""Requests of JetStream's API without sense: each is answered, and costs nobody else anything."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Iterator
from typing import Any, Final

import nats.errors
import pytest
from nats.aio.client import Client
from nats.js.errors import APIError

from holdfast.client import connect
from holdfast.gateway.jetstream.api.consumer_config import ApiConsumerConfig
from holdfast.gateway.jetstream.api.requests.verbs import ApiVerb
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig
from holdfast.gateway.jetstream.catalogue.catalogue import CATALOGUE_KV, key_of
from tests.support.cluster import TENANT
from tests.support.jetstream import JetStreamWorld, running_jetstream, tried_again
from tests.support.process import Process

_NUMBERS: Final = (0, 1, -1, 255, 1 << 31, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 10**30)
_TEXTS: Final = (
    *("", "a", "a.*", ">", "a..b", "x.S0.>", "$JS.API.>", "hf.>", "\x00", "a b", "\ud800", "é"),
    *("k" * 300, "k" * 5000, ".".join("*" * 1000), "all", "new", "explicit", "interest", "memory"),
    *("2020-01-01T00:00:00Z", "1e400", "b.{{partition(99999999999,1)}}", "b.$1", "S0", "S1"),
)
_ODD: Final = (None, True, 0.5, 1e308, [], [[]], {}, {"a": 1}, ["a", "a"], ["a.b", "a.c"])
_FIELDS: Final = (
    *("offset", "subjects_filter", "deleted_details", "filter", "seq", "keep", "last_by_subj"),
    *("next_by_subj", "batch", "expires", "no_wait", "max_bytes", "multi_last", "up_to_seq"),
    *("start_time", "pause_until", "group", "subject"),
)
_HEADERS: Final = (
    *("Nats-Msg-Id", "Nats-Expected-Last-Sequence", "Nats-Expected-Last-Subject-Sequence"),
    *("Nats-Rollup", "Nats-TTL", "Nats-Incr", "Nats-Batch-Id", "Nats-Batch-Sequence"),
    *("Nats-Batch-Commit", "Nats-Schedule", "Nats-Schedule-Target", "Nats-Schedule-Time-Zone"),
)


class Hostile:
    """Makes requests, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def request(self) -> tuple[str, bytes, dict[str, str]]:
        """Return subject, payload and headers."""
        chance = self._random
        stream, consumer = chance.choice(("S0", "S1")), chance.choice(("C0", "C1"))
        if chance.random() < 0.25:
            fields = {name: self._header() for name in chance.sample(_HEADERS, 3)}
            return f"x.{stream}.{chance.choice('ab')}", b"v", fields
        verb = chance.choice([*ApiVerb, ApiVerb.STREAM_CREATE, ApiVerb.CONSUMER_CREATE])
        subject, body = f"$JS.API.{verb}", self._fields(_FIELDS)
        if verb not in (ApiVerb.INFO, ApiVerb.STREAM_NAMES, ApiVerb.STREAM_LIST):
            subject += f".{stream}"
        if verb.startswith("CONSUMER.") and verb not in (
            ApiVerb.CONSUMER_NAMES,
            ApiVerb.CONSUMER_LIST,
        ):
            subject += f".{consumer}"
        if verb in (ApiVerb.STREAM_CREATE, ApiVerb.STREAM_UPDATE):
            names = [*ApiStreamConfig.__dataclass_fields__]
            body = {"subjects": [f"x.{stream}.>"]} | self._fields(names) | {"name": stream}
        elif "CREATE" in verb:
            names = [*ApiConsumerConfig.__dataclass_fields__]
            config = {"durable_name": consumer, "ack_policy": "explicit"} | self._fields(names)
            body = {"stream_name": stream, "config": config}
        return subject, self._encoded(body), {}

    def _fields(self, names: Any) -> dict[str, Any]:
        chosen = self._random.sample([*names], self._random.randrange(4))
        return {name: self._value() for name in chosen}

    def _value(self) -> Any:
        kind = self._random.choice((_NUMBERS, _TEXTS, _ODD, None))
        if kind is None:
            return [self._random.choice(_TEXTS) for _ in range(self._random.randrange(3))]
        return self._random.choice(kind)

    def _header(self) -> str:
        text = str(self._random.choice((*_NUMBERS, *_TEXTS, "sub", "commit", "eob", "+5", "1h")))
        return "".join(each for each in text[:300] if each.isprintable())

    def _encoded(self, body: object) -> bytes:
        text = json.dumps(body).encode()
        digits = b'{"seq":%b}' % (b"9" * 6000)
        broken = (text[: len(text) // 2], b"[" * 100_000, b'{"a":' * 20_000, digits)
        return self._random.choice(broken) if self._random.random() < 0.05 else text


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JetStreamWorld]:
    with running_jetstream(tmp_path_factory.mktemp("hostile")) as world:
        yield world


@pytest.fixture
def gateway(world: JetStreamWorld) -> Process:
    return world.start_gateway()


async def _error(client: Client, verb: str, body: object) -> dict[str, Any]:
    answer = await client.request(f"$JS.API.{verb}", json.dumps(body).encode(), timeout=20.0)
    error: dict[str, Any] = json.loads(answer.data).get("error", {})
    return error


async def test_a_stream_whose_subject_is_too_long_for_nats_is_refused(
    world: JetStreamWorld, gateway: Process
) -> None:
    """nats-server ended the gateway's connection for it, and each later one too."""
    async with world.client() as client:
        js = client.jetstream()
        await js.add_stream(name="other", subjects=["other"])
        for subject in ("k" * 5000, "é" * 2500):
            error = await _error(client, "STREAM.CREATE.S", {"name": "S", "subjects": [subject]})
            assert error["err_code"] == 10052, error
        for number in range(1, 4):
            assert (await js.publish("other", b"v")).seq == number


async def test_requests_without_sense_get_errors_that_say_so(
    world: JetStreamWorld, gateway: Process
) -> None:
    async with world.client() as client:
        js = client.jetstream()
        await js.add_stream(name="S", subjects=["s.*"], allow_direct=True)
        await js.publish("s.a", b"v")
        for fields in ({"offset": (1 << 63) - 1}, {"subjects_filter": "a..b"}):
            asked = {"subjects_filter": ">", "deleted_details": True} | fields
            assert await _error(client, "STREAM.INFO.S", asked) == {}
        for seq in (1 << 63, (1 << 64) - 1):
            error = await _error(client, "STREAM.MSG.DELETE.S", {"seq": seq})
            assert error["err_code"] == 10051, error
        error = await _error(client, "STREAM.CREATE.T", {"name": "T", "first_seq": (1 << 63) - 2})
        assert error["err_code"] == 10051, error
        # Of an empty name there is no batch.
        assert (await js.publish("s.a", b"v", headers={"Nats-Batch-Id": ""})).seq == 2
        await client.publish("$JS.API.INFO", b"", reply="r" * 4040)
        await client.flush()
    assert "Traceback" not in gateway.log


async def test_messages_whose_answers_nats_cannot_carry_cost_nobody_anything(
    world: JetStreamWorld, gateway: Process
) -> None:
    """They are as long as a client may send them, and longer than a gateway may."""
    inbox = "r" * 4030
    async with world.client() as client, world.client() as attacker:
        js = client.jetstream()
        settings = {"name": "S", "subjects": ["s.*"], "allow_batched": True, "max_msgs": 3}
        settings |= {"discard": "new", "allow_atomic": True}
        assert not await _error(client, "STREAM.CREATE.S", settings)
        for number in range(3):
            await attacker.publish("s.1", b"v", reply=f"{inbox}.b{number}.10.ok.1.0.$FI")
            await attacker.publish("s.1", b"v", reply=inbox)
            await attacker.publish("s.1", b"v", reply=inbox, headers={"Nats-Batch-Id": "b"})
        await attacker.flush()
        await asyncio.gather(*(_full(client) for _ in range(5)))
        assert not await _error(client, "STREAM.UPDATE.S", settings | {"allow_batched": False})
        assert not await _error(client, "STREAM.DELETE.S", {})
        await js.add_stream(name="T", subjects=["s.*"])
        assert (await js.publish("s.1", b"v")).seq == 1
    assert "Traceback" not in gateway.log


async def _full(client: Client) -> None:
    """Publish to a stream that is full, or soon is."""
    with contextlib.suppress(APIError):
        while True:
            await client.jetstream().publish("s.1", b"v", timeout=20.0)


async def test_what_a_foreign_hand_puts_into_the_catalogue_costs_no_other_stream(
    world: JetStreamWorld, gateway: Process
) -> None:
    """Whoever may write to the kv could end each gateway, also one that starts anew."""
    bad = (
        {"name": "bad", "subjects": [1]},
        {"name": "bad", "max_bytes": float("inf")},
        {"name": "bad", "subjects": ["x"], "retention": 7},
    )
    async with world.client() as client, connect(world.nats.url, tenant=TENANT) as native:
        js = client.jetstream()
        await js.add_stream(name="other", subjects=["other"])
        for config in bad:
            entry = {"store": "bad", "created_ms": 1, "config": config}
            await native.kv(CATALOGUE_KV).set(key_of("bad"), json.dumps(entry).encode())
            assert (await js.publish("other", b"v")).seq > 0
            assert [each.config.name for each in await js.streams_info()] == ["other"]
        gateway.kill()
        world.start_gateway()
        assert (await tried_again(lambda: js.publish("other", b"v"))).seq > len(bad)


async def test_a_flood_of_requests_without_sense_costs_nobody_else_anything(
    world: JetStreamWorld, gateway: Process
) -> None:
    hostile = Hostile(seed=1)
    async with world.client() as client, world.client() as attacker:
        js = client.jetstream()
        await js.add_stream(name="other", subjects=["other"])

        async def attack() -> None:
            subject, payload, headers = hostile.request()
            # Of a stream without acks, and of one that is not there.
            with contextlib.suppress(nats.errors.TimeoutError, nats.errors.NoRespondersError):
                await attacker.request(subject, payload, timeout=1.0, headers=headers or None)

        for number in range(1, 21):
            await asyncio.gather(*(attack() for _ in range(25)))
            assert (await js.publish("other", b"v", timeout=20.0)).seq == number
    assert gateway.running
    assert "Traceback" not in gateway.log

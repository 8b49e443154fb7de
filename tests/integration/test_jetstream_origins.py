"""Mirrors and sources of JetStream: copies of other streams, kept by a gateway in front of a
cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import RawStreamMsg
from nats.js.errors import NotFoundError

from holdfast.client import connect
from tests.support.cluster import TENANT
from tests.support.jetstream import JetStreamWorld, running_jetstream, tried_again


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JetStreamWorld]:
    with running_jetstream(tmp_path_factory.mktemp("jetstream")) as world:
        world.start_gateway()
        yield world


async def ask(client: Client, verb: str, **body: Any) -> dict[str, Any]:
    """Return the answer of the API, an error too."""
    payload = json.dumps(body).encode() if body else b""
    found: dict[str, Any] = json.loads(
        (await client.request(f"$JS.API.{verb}", payload, timeout=10.0)).data
    )
    return found


async def create(client: Client, name: str, **config: Any) -> dict[str, Any]:
    """Create a stream, and return its information."""
    found = await ask(client, f"STREAM.CREATE.{name}", name=name, **config)
    assert "error" not in found, found
    return found


async def refused(client: Client, name: str, **config: Any) -> int:
    """Return the number of the error that the creation of a stream is answered with."""
    found = await ask(client, f"STREAM.CREATE.{name}", name=name, **config)
    return int(found["error"]["err_code"])


async def until(check: Callable[[], Awaitable[bool]], seconds: float = 20.0) -> None:
    """Return once the check says so."""
    async with asyncio.timeout(seconds):
        while not await check():
            await asyncio.sleep(0.01)


async def has(client: Client, name: str, last_seq: int, messages: int | None = None) -> None:
    """Return once a stream has come to this last seq, and has so many messages."""

    async def check() -> bool:
        state = (await ask(client, f"STREAM.INFO.{name}"))["state"]
        return state["last_seq"] == last_seq and messages in (None, state["messages"])

    await until(check)


async def messages_of(js: JetStreamContext, name: str, last_seq: int) -> dict[int, RawStreamMsg]:
    """Return the messages of a stream by their seqs."""
    found = {}
    for seq in range(1, last_seq + 1):
        try:
            found[seq] = await js.get_msg(name, seq)
        except NotFoundError:
            continue
    return found


async def test_a_mirror_has_the_seqs_times_subjects_and_headers_of_its_origin(
    world: JetStreamWorld,
) -> None:
    async with world.client() as client:
        js = client.jetstream()
        await create(client, "O", subjects=["o.>"])
        for number in range(1, 13):
            await js.publish(f"o.{number}", b"%d" % number, headers={"X-N": str(number)})
        for seq in (1, 5, 6, 12):
            assert await js.delete_msg("O", seq)
        info = await create(client, "M", mirror={"name": "O"})
        assert "subjects" not in info["config"]
        await has(client, "M", 11, 8)
        await js.publish("o.13", b"13")
        await has(client, "M", 13, 9)
        ours, theirs = await messages_of(js, "M", 13), await messages_of(js, "O", 13)
        assert ours.keys() == theirs.keys() == {2, 3, 4, 7, 8, 9, 10, 11, 13}
        for seq, message in theirs.items():
            copy = ours[seq]
            assert (copy.subject, copy.data, copy.hdrs, copy.time) == (
                *(message.subject, message.data, message.hdrs, message.time),
            )
        info = await ask(client, "STREAM.INFO.M", deleted_details=True)
        assert info["mirror"].keys() == {"name", "lag", "active"}
        assert (info["mirror"]["name"], info["mirror"]["lag"]) == ("O", 0)
        assert 0 <= info["mirror"]["active"] < 10e9
        assert info["state"]["deleted"] == [5, 6, 12]
        # What goes at the origin later stays: a mirror copies messages only.
        await js.purge_stream("O")
        await js.publish("o.14", b"14")
        await has(client, "M", 14, 10)


async def test_a_mirror_begins_where_it_is_told_and_takes_what_matches(
    world: JetStreamWorld,
) -> None:
    async with world.client() as client:
        js = client.jetstream()
        await create(client, "BEGIN", subjects=["b.>"])
        for number in range(1, 11):
            await js.publish(f"b.{number % 2}.{number}", b"%d" % number)
        await create(client, "BSEQ", mirror={"name": "BEGIN", "opt_start_seq": 7})
        await has(client, "BSEQ", 10, 4)
        assert (await ask(client, "STREAM.INFO.BSEQ"))["state"]["first_seq"] == 7
        filtered = {"name": "BEGIN", "filter_subject": "b.0.*"}
        await create(client, "BFILTER", mirror=filtered)
        await has(client, "BFILTER", 10, 5)
        transforms = [{"src": "b.1.*", "dest": "odd.$1"}, {"src": "b.0.8", "dest": ""}]
        info = await create(
            client, "BMOVED", mirror={"name": "BEGIN", "subject_transforms": transforms}
        )
        assert info["config"]["mirror"]["subject_transforms"] == transforms
        await has(client, "BMOVED", 9, 6)
        moved = await messages_of(js, "BMOVED", 9)
        assert {seq: each.subject for seq, each in moved.items()} == {
            **{seq: f"odd.{seq}" for seq in (1, 3, 5, 7, 9)},
            8: "b.0.8",
        }
        found = await ask(client, "STREAM.INFO.BMOVED")
        assert found["mirror"]["subject_transforms"] == transforms
        await js.publish("b.0.x", b"")
        await js.publish("b.1.y", b"")
        await has(client, "BMOVED", 12, 7)


async def test_sources_say_where_they_come_from_and_mix_with_the_streams_own(
    world: JetStreamWorld,
) -> None:
    async with world.client() as client:
        js = client.jetstream()
        await create(client, "SA", subjects=["sa.>"])
        await create(client, "SB", subjects=["sb.>"])
        for number in range(1, 5):
            await js.publish(f"sa.{number}", b"a%d" % number, headers={"X": "1"})
            await js.publish(f"sb.{number}", b"b%d" % number)
        sources = [
            {"name": "SA", "opt_start_seq": 3},
            {"name": "SB", "subject_transforms": [{"src": "sb.*", "dest": "from.b.$1"}]},
            {"name": "SA", "filter_subject": "sa.1"},
        ]
        await create(client, "ALL", subjects=["all.>"], sources=sources)
        await has(client, "ALL", 7)
        await js.publish("all.own", b"own")
        await js.publish("sb.9", b"b9")
        await has(client, "ALL", 9)
        found = {each.data: each for each in (await messages_of(js, "ALL", 9)).values()}
        assert found.keys() == {
            *(b"a1", b"a3", b"a4", b"b1", b"b2", b"b3", b"b4", b"b9", b"own"),
        }
        assert found[b"a3"].headers == {"X": "1", "Nats-Stream-Source": "SA 3 > > sa.3"}
        assert found[b"a1"].headers["Nats-Stream-Source"] == "SA 1 sa.1 > sa.1"
        assert found[b"b9"].headers == {"Nats-Stream-Source": "SB 5 sb.* from.b.$1 sb.9"}
        assert found[b"b9"].subject == "from.b.9"
        info = await ask(client, "STREAM.INFO.ALL")
        assert [(each["name"], each["lag"]) for each in info["sources"]] == [
            *(("SA", 0), ("SB", 0), ("SA", 0)),
        ]
        assert info["state"]["consumer_count"] == 0
        # A chain: the header is that of the last step.
        await create(client, "CHAIN", sources=[{"name": "ALL", "filter_subject": "from.>"}])
        await has(client, "CHAIN", 5)
        (first, *_) = (await messages_of(js, "CHAIN", 5)).values()
        assert first.headers["Nats-Stream-Source"].startswith("ALL ")
        # A source that goes and comes again goes on where it was.
        await ask(client, "STREAM.UPDATE.ALL", name="ALL", subjects=["all.>"])
        await js.publish("sb.10", b"b10")
        await ask(client, "STREAM.UPDATE.ALL", name="ALL", subjects=["all.>"], sources=sources[1:2])
        await has(client, "ALL", 10, 10)


async def test_an_origin_that_is_created_again_is_sourced_from_its_beginning(
    world: JetStreamWorld,
) -> None:
    async with world.client() as client:
        js = client.jetstream()
        await create(client, "TWICE", sources=[{"name": "LATER"}])
        await create(client, "COPY", mirror={"name": "LATER"})

        async def error(stream: str, field: str) -> int:
            found = (await ask(client, f"STREAM.INFO.{stream}"))[field]
            return int((found[0] if field == "sources" else found)["error"]["err_code"])

        assert await error("TWICE", "sources") == await error("COPY", "mirror") == 10059
        for life in range(1, 3):
            await create(client, "LATER", subjects=["later"])
            for number in range(2):
                await js.publish("later", b"%d %d" % (life, number))
            await has(client, "TWICE", 2 * life)
            await js.delete_stream("LATER")
        copies = await messages_of(js, "TWICE", 4)
        assert [each.data for each in copies.values()] == [b"1 0", b"1 1", b"2 0", b"2 1"]
        # A mirror waits until its origin has come as far as it had.
        assert (await ask(client, "STREAM.INFO.COPY"))["state"]["last_seq"] == 2
        await create(client, "LATER", subjects=["later"])
        for _ in range(3):
            await js.publish("later", b"3")
        await has(client, "COPY", 3, 3)


async def test_how_far_a_source_is_behind_is_told_while_it_cannot_be_copied(
    world: JetStreamWorld,
) -> None:
    async with world.client() as client:
        js = client.jetstream()
        await create(client, "LAG", subjects=["lag.>"])
        for number in range(7):
            await js.publish(f"lag.{number % 2}", b"%d" % number)
        source = {"name": "LAG", "filter_subject": "lag.0"}
        config = {"sources": [source], "max_msgs": 2, "discard": "new"}
        await create(client, "FULL", **config)

        async def sources(name: str = "FULL") -> dict[str, Any]:
            [found] = (await ask(client, f"STREAM.INFO.{name}"))["sources"]
            return dict(found)

        async def is_full() -> bool:
            return "error" in await sources()

        await until(is_full)
        found = await sources()
        assert (found["name"], found["lag"], found["filter_subject"]) == ("LAG", 2, "lag.0")
        assert 0 <= found["active"] < 60e9
        await js.publish("lag.0", b"")
        await js.publish("lag.1", b"")
        assert (await sources())["lag"] == 3
        await ask(client, "STREAM.UPDATE.FULL", name="FULL", **config | {"max_msgs": 10})
        await has(client, "FULL", 5, 5)

        async def is_copied() -> bool:
            found = await sources()
            return found["lag"] == 0 and "error" not in found

        await until(is_copied)
        sealed = {"name": "FULL", **config, "max_msgs": 10, "sealed": True}
        assert "error" not in await ask(client, "STREAM.UPDATE.FULL", **sealed)
        assert await sources() == source | {"lag": 0, "active": -1}


async def test_what_jetstream_refuses_of_mirrors_and_sources_is_refused_with_its_errors(
    world: JetStreamWorld,
) -> None:
    async with world.client() as client:
        await create(client, "R", subjects=["r"], max_msg_size=100)
        mirror = {"name": "R"}
        assert await refused(client, "X", mirror=mirror, subjects=["x"]) == 10034
        assert await refused(client, "X", mirror=mirror, sources=[mirror]) == 10031
        assert await refused(client, "X", mirror=mirror, first_seq=5) == 10143
        assert await refused(client, "X", mirror=mirror, max_msg_size=10) == 10030
        assert await refused(client, "X", mirror={"name": "a.b"}) == 10142
        assert await refused(client, "X", mirror={"name": "X"}) == 10052
        assert await refused(client, "X", sources=[mirror, mirror]) == 10140
        assert await refused(client, "X", sources=[{"name": ""}]) == 10141
        assert await refused(client, "X", sources=[mirror], max_msg_size=10) == 10046
        external = {"api": "$JS.other.API", "deliver": "d"}
        assert await refused(client, "X", mirror=mirror | {"external": external}) == 10052
        await create(client, "X", subjects=["x"], sources=[mirror])
        update = {"name": "R", "subjects": ["r"], "max_msg_size": 100, "sources": [{"name": "X"}]}
        found = await ask(client, "STREAM.UPDATE.R", **update)
        assert found["error"]["description"] == "detected cycle"
        await create(client, "Y", mirror=mirror)
        found = await ask(client, "STREAM.UPDATE.Y", name="Y", mirror={"name": "X"})
        assert found["error"]["err_code"] == 10055
        found = await ask(client, "STREAM.UPDATE.Y", name="Y")
        assert found["config"]["subjects"] == ["Y"]


async def test_a_bucket_can_mirror_another_whose_messages_may_not_be_deleted(
    world: JetStreamWorld,
) -> None:
    async with world.client() as client:
        js = client.jetstream()
        bucket = await js.create_key_value(bucket="here", history=1, direct=True)
        for number in range(5):
            await bucket.put("a", b"%d" % number)
        await bucket.put("b", b"b")
        await create(
            client,
            "KV_there",
            mirror={"name": "KV_here"},
            max_msgs_per_subject=1,
            allow_rollup_hdrs=True,
            deny_delete=True,
            discard="new",
            max_msgs=3,
            allow_direct=True,
        )
        await has(client, "KV_there", 6, 2)
        await bucket.purge("a")
        await has(client, "KV_there", 7, 2)
        there = await js.get_last_msg("KV_there", "$KV.here.b")
        assert (there.seq, there.data) == (6, b"b")
        found = await ask(client, "STREAM.MSG.DELETE.KV_there", seq=6)
        assert found["error"]["err_code"] == 10057
        info = await ask(client, "STREAM.INFO.KV_there")
        assert info["config"]["mirror_direct"] is True


async def test_a_bucket_sources_another_one(world: JetStreamWorld) -> None:
    async with world.client() as client:
        js = client.jetstream()
        first = await js.create_key_value(bucket="first", history=3)
        for number in range(5):
            await first.put("k", b"%d" % number)
        transforms = [{"src": "$KV.first.>", "dest": "$KV.second.>"}]
        await create(
            client,
            "KV_second",
            subjects=["$KV.second.>"],
            sources=[{"name": "KV_first", "subject_transforms": transforms}],
            max_msgs_per_subject=1,
            allow_rollup_hdrs=True,
            allow_direct=True,
        )
        await has(client, "KV_second", 3, 1)
        second = await js.key_value("second")
        assert (await second.get("k")).value == b"4"
        await second.put("own", b"own")
        await first.delete("k")
        await has(client, "KV_second", 5, 2)
        assert await second.keys() == ["own"]


async def test_large_values_are_copied_whole(world: JetStreamWorld) -> None:
    async with world.client() as client:
        js = client.jetstream()
        await create(client, "LARGE", subjects=["large"])
        values = [bytes([number]) * 700_000 for number in range(3)]
        for value in values:
            await js.publish("large", value)
        await create(client, "LM", mirror={"name": "LARGE"})
        await create(client, "LS", sources=[{"name": "LARGE"}])
        for copy in ("LM", "LS"):
            await has(client, copy, 3, 3)
            assert [each.data for each in (await messages_of(js, copy, 3)).values()] == values


async def test_native_clients_messages_are_copied_and_consumers_get_copies(
    world: JetStreamWorld,
) -> None:
    async with (
        world.client() as client,
        connect(world.nats.url, tenant=TENANT) as holdfast,
    ):
        js = client.jetstream()
        await create(client, "NATIVE", subjects=["native.>"])
        await create(client, "NCOPY", sources=[{"name": "NATIVE"}])
        subscription = await js.pull_subscribe("native.>", durable="d", stream="NCOPY")
        store = holdfast.stream("NATIVE")
        for number in range(3):
            await store.append(b"%d" % number, subject="native.x")
        found: list[bytes] = []
        while len(found) < 3:
            found += [each.data for each in await subscription.fetch(3, timeout=10.0)]
        assert found == [b"0", b"1", b"2"]


async def test_copies_go_on_when_gateways_are_killed_without_a_loss_or_a_double(
    tmp_path: Path,
) -> None:
    count, kills = 600, 3
    with running_jetstream(tmp_path) as world:
        gateways = [world.start_gateway() for _ in range(2)]
        async with world.client() as client:
            js = client.jetstream()
            for name in ("A", "B"):
                await tried_again(lambda name=name: create(client, name, subjects=[f"{name}.>"]))
            sources = [{"name": "A"}, {"name": "B"}]
            await tried_again(lambda: create(client, "SOURCED", sources=sources))
            await tried_again(lambda: create(client, "MIRROR", mirror={"name": "A"}))

            async def publish(name: str) -> None:
                for number in range(count // 2):
                    headers = {"Nats-Msg-Id": f"{name}{number}"}
                    body = f"{name}{number}".encode()
                    await tried_again(
                        lambda body=body, headers=headers: js.publish(
                            f"{name}.x", body, timeout=1.0, headers=headers
                        )
                    )

            async def kill() -> None:
                for number in range(kills):
                    await asyncio.sleep(0.3)
                    gateways[number % 2].kill()
                    gateways[number % 2] = await asyncio.to_thread(world.start_gateway)

            await asyncio.gather(publish("A"), publish("B"), kill())
            await tried_again(lambda: has(client, "SOURCED", count, count))
            await tried_again(lambda: has(client, "MIRROR", count // 2, count // 2))
        async with connect(world.nats.url, tenant=TENANT) as holdfast:
            values = {
                name: [each.value async for each in holdfast.stream(name).get_all()]
                for name in ("A", "B", "SOURCED", "MIRROR")
            }
        assert values["MIRROR"] == values["A"]
        for name in ("A", "B"):
            copied = [each for each in values["SOURCED"] if each.startswith(name.encode())]
            assert copied == values[name] == [b"%b%d" % (name.encode(), at) for at in range(300)]

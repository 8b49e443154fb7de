"""HTTP gateways of a real cluster: what clients see, also of two gateways, and of one that dies."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import websockets
from jsonschema import Draft202012Validator

from holdfast.client.connecting import connect as connect_async
from holdfast.client.sync import connect
from holdfast.gateway.http.durable.stream_names import store_of_url_path
from holdfast.gateway.http.openapi.document import document
from tests.support.holdfast_up import (
    RunningUp,
    call_holdfast,
    run_holdfast,
    running_up,
    wait_until,
)
from tests.support.http_gateway import HttpAnswer, RunningGateway, running_http_gateway

_METHODS = ("get", "head", "put", "post", "delete", "patch")

pytestmark = pytest.mark.xdist_group("http_gateway")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    with running_up(tmp_path_factory.mktemp("http") / "data", "--servers", "1") as running:
        yield running


@pytest.fixture(scope="module")
def gateway(cluster: RunningUp) -> Iterator[RunningGateway]:
    with running_http_gateway(cluster.nats) as running:
        yield running


def code_of(answer: HttpAnswer) -> tuple[int, str]:
    """The status and the code of problem details."""
    assert answer.headers["content-type"] == "application/problem+json", answer
    found = json.loads(answer.body)
    assert found["status"] == answer.status and b"Traceback" not in answer.body
    return answer.status, found["code"]


def test_a_durable_stream_from_its_creation_to_its_end(gateway: RunningGateway) -> None:
    path = "/v1/stream/life/a"
    assert gateway.ask("PUT", path, Content_Type="text/plain").status == 201
    assert gateway.ask("PUT", path, Content_Type="text/plain").status == 200
    assert gateway.ask("POST", path, b"one ", Content_Type="text/plain").status == 204
    assert gateway.ask("POST", path, b"two", Content_Type="text/plain").status == 204
    found = gateway.ask("GET", path)
    assert found.body == b"one two" and found.headers["stream-up-to-date"] == "true"
    assert gateway.ask("GET", path, If_None_Match=found.headers["etag"]).status == 304
    fork = gateway.ask("PUT", "/v1/stream/life/b", b"!", Stream_Forked_From=path)
    assert fork.status == 201, fork
    assert gateway.ask("DELETE", path).status == 204
    assert code_of(gateway.ask("GET", path)) == (410, "gone")
    assert gateway.ask("GET", "/v1/stream/life/b").body == b"one two!"
    assert gateway.ask("DELETE", "/v1/stream/life/b").status == 204
    assert code_of(gateway.ask("GET", path)) == (404, "not_found")
    assert gateway.ask("PUT", path, Content_Type="text/html").status == 201


def test_streams_that_are_deleted_and_made_again_at_once_lose_nothing(
    cluster: RunningUp, gateway: RunningGateway
) -> None:
    path = "/v1/stream/again"

    def delete_and_make(each: RunningGateway) -> None:
        for _ in range(8):
            each.ask("DELETE", path)
            made = each.ask("PUT", path, Content_Type="text/plain")
            assert made.status in (200, 201), made

    with running_http_gateway(cluster.nats) as other, ThreadPoolExecutor(2) as threads:
        list(threads.map(delete_and_make, (gateway, other)))
        assert gateway.ask("POST", path, b"kept", Content_Type="text/plain").status == 204
        assert other.ask("GET", path).body == b"kept"


def test_a_stream_whose_serving_epoch_was_raised_for_nothing_takes_appends_and_forks(
    cluster: RunningUp, gateway: RunningGateway
) -> None:
    path = "/v1/stream/raised"
    gateway.ask("PUT", path, b"one ", Content_Type="text/plain")

    async def raise_it(serving_epoch: int) -> None:
        # As a deletion whose gateway died, or a creation that came second.
        async with connect_async(cluster.nats) as client:
            store = client.serving_stream(store_of_url_path(path))
            await store.configure(serving_epoch=serving_epoch)

    asyncio.run(raise_it(2**61))
    fork = gateway.ask("PUT", "/v1/stream/raised/fork", b"!", Stream_Forked_From=path)
    assert fork.status == 201, fork
    asyncio.run(raise_it(2**61 + 100_000))
    assert gateway.ask("POST", path, b"two", Content_Type="text/plain").status == 204
    assert gateway.ask("GET", path).body == b"one two"
    assert gateway.ask("GET", "/v1/stream/raised/fork").body == b"one !"


def test_events_have_all_of_a_stream_that_is_closed_while_they_begin(
    gateway: RunningGateway,
) -> None:
    def read(path: str) -> str:
        events = gateway.ask("GET", f"{path}?offset=-1&live=sse").body.decode()
        assert '"streamClosed":true' in events.split("event: ")[-1]
        data = [each for each in events.split("event: ") if each.startswith("data\n")]
        return "".join(line[5:] for each in data for line in each.split("\n")[1:] if line)

    def close_while_it_is_read(number: int) -> str:
        path = f"/v1/stream/closing{number}"
        gateway.ask("PUT", path, Content_Type="text/plain")
        gateway.ask("POST", path, b"a", Content_Type="text/plain")
        reading = readers.submit(read, path)
        gateway.ask("POST", path, b"b", Content_Type="text/plain", Stream_Closed="true")
        return reading.result()

    with ThreadPoolExecutor(4) as readers, ThreadPoolExecutor(4) as closers:
        assert set(closers.map(close_while_it_is_read, range(40))) == {"ab"}


def test_two_gateways_and_producers_that_change_between_them_lose_and_double_nothing(
    cluster: RunningUp, gateway: RunningGateway
) -> None:
    path = "/v1/stream/shared"
    gateway.ask("PUT", path, Content_Type="application/json")
    with running_http_gateway(cluster.nats) as other, ThreadPoolExecutor(4) as threads:

        def produce(producer: int) -> None:
            for seq in range(25):
                body = json.dumps([producer, seq]).encode()
                fields = {
                    "Content-Type": "application/json",
                    "Producer-Id": f"p{producer}",
                    "Producer-Epoch": "0",
                    "Producer-Seq": str(seq),
                }
                for attempt in range(200):
                    # Every request is sent twice, to both, and one gateway is killed.
                    each = (gateway, other)[(seq + attempt + producer) % 2]
                    with contextlib.suppress(OSError):
                        found = each.request("POST", path, b"[" + body + b"]", fields)
                        assert found.status in (200, 204), found
                        if attempt:
                            break
                if producer == 0 and seq == 12:
                    other.kill()

        list(threads.map(produce, range(4)))
    found = json.loads(gateway.ask("GET", path).body)
    assert len(found) == 100
    for producer in range(4):
        assert [seq for who, seq in found if who == producer] == list(range(25))


def test_stores_of_expired_streams_are_removed_by_any_gateway_and_used_ones_stay(
    cluster: RunningUp,
) -> None:
    sweeping = ("--sweep-seconds", "0.2")
    with (
        running_http_gateway(cluster.nats, *sweeping, long_poll_seconds="1") as one,
        running_http_gateway(cluster.nats, *sweeping, long_poll_seconds="1") as other,
    ):
        for name in ("a", "b", "used"):
            made = one.ask("PUT", f"/v1/stream/swept/{name}", b"x", Stream_TTL="1")
            assert made.status == 201, made

        def are_swept() -> bool:
            assert other.ask("GET", "/v1/stream/swept/used").status == 200
            rows = cluster.json("stream", "ls", "ds.swept.")["streams"]
            return [row["name"] for row in rows] == ["ds.swept.used"]

        wait_until(are_swept, "only the one that is used is left")

        def are_forgotten() -> bool:
            keys = cluster.output("kv", "keys", "ds-expiries").splitlines()
            return {key.partition(" ")[2] for key in keys} == {"ds.swept.used"}

        # After its store, the note of its expiry goes.
        wait_until(are_forgotten, "only the one that is used is noted")
        assert code_of(one.ask("GET", "/v1/stream/swept/a")) == (404, "not_found")


def test_a_large_value_is_sent_whole_and_never_held_whole(
    cluster: RunningUp, gateway: RunningGateway
) -> None:
    """Any client of the cluster may have stored it, and a gateway serves all tenants."""
    value = os.urandom(1024) * 40_000
    with connect(cluster.nats) as client:
        client.kv("large").set("k", value)
        client.stream("large").append(value)
    before_bytes = _most_memory_bytes(gateway)
    for path in ("/v1/kv/large/k", "/v1/streams/large/1"):
        found = gateway.ask("GET", path)
        assert found.status == 200 and found.body == value
        head = gateway.ask("HEAD", path)
        assert (head.status, head.body) == (200, b"")
        assert head.headers["content-length"] == found.headers["content-length"]
    again = gateway.ask("GET", "/v1/kv/large/k", If_None_Match="*")
    assert (again.status, again.body) == (304, b"")
    if before_bytes:
        assert _most_memory_bytes(gateway) - before_bytes < len(value) // 2


def _most_memory_bytes(gateway: RunningGateway) -> int:
    """Return the most memory that a process has had, 0 where the system does not tell."""
    status = Path(f"/proc/{gateway.process.pid}/status")
    if not status.exists():
        return 0
    [line] = [each for each in status.read_text().splitlines() if each.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def test_conditions_on_the_revisions_of_a_kv(gateway: RunningGateway) -> None:
    path = "/v1/kv/settings/a/b%2Fc"
    made = gateway.ask("PUT", path, b"1", If_None_Match="*", Content_Type="text/plain")
    assert made.status == 200
    tag = made.headers["etag"]
    assert code_of(gateway.ask("PUT", path, b"2", If_None_Match="*"))[0] == 412
    assert code_of(gateway.ask("PUT", path, b"2", If_Match='"99"'))[0] == 412
    assert code_of(gateway.ask("PUT", path, b"2", If_Match="1"))[0] == 400
    assert gateway.ask("PUT", path, b"\xff", If_Match=tag).status == 200
    assert gateway.ask("GET", path).body == b"\xff"
    rows = [json.loads(row) for row in gateway.ask("GET", "/v1/kv/settings").body.splitlines()]
    assert [(row["key"], row["value_base64"]) for row in rows] == [("a/b/c", "/w==")]
    assert gateway.ask("DELETE", path).status == 204
    assert code_of(gateway.ask("GET", path)) == (404, "not_found")


def test_events_go_on_after_the_last_id_at_another_gateway(
    cluster: RunningUp, gateway: RunningGateway
) -> None:
    for number in range(4):
        sent = gateway.ask("POST", "/v1/streams/chat", b"%d" % number, Idempotency_Key=f"k{number}")
        assert sent.status == 201
    again = gateway.ask("POST", "/v1/streams/chat", b"3", Idempotency_Key="k3")
    assert json.loads(again.body)["duplicate"] is True
    with gateway.events("/v1/follow/chat?start_seq=1") as events:
        first = [next(events), next(events)]
    with (
        running_http_gateway(cluster.nats) as other,
        other.events("/v1/follow/chat", Last_Event_ID=first[-1]["id"]) as events,
    ):
        rest = [next(events), next(events)]
    values = [json.loads(each["data"])["message"]["value"] for each in (*first, *rest)]
    assert values == ["0", "1", "2", "3"]


def test_followers_of_a_gateway_that_dies_go_on_at_another_and_miss_and_double_nothing(
    cluster: RunningUp, gateway: RunningGateway
) -> None:
    path, count = "/v1/stream/outlived", 60
    gateway.ask("PUT", path, Content_Type="application/json")
    gateway.ask("POST", "/v1/streams/outlived", b"begin")
    halfway = threading.Event()

    def write() -> None:
        for number in range(count):
            body = b"%d" % number
            assert gateway.ask("POST", "/v1/streams/outlived", body).status == 201
            sent = gateway.ask("POST", path, body, Content_Type="application/json")
            assert sent.status == 204, sent
            if number == count // 2:
                halfway.set()

    def of_stream(first: RunningGateway) -> list[int]:
        found: list[int] = []
        last_id: dict[str, str] = {}
        for each in (first, *[gateway] * 9):
            with (
                contextlib.suppress(OSError, http.client.HTTPException),
                each.events("/v1/follow/outlived?start_seq=2", **last_id) as events,
            ):
                for event in events:
                    change = json.loads(event["data"])
                    if "message" in change:
                        last_id = {"Last_Event_ID": event["id"]}
                        found.append(int(change["message"]["value"]))
                    if len(found) >= count:
                        return found
        raise AssertionError(found)

    def of_durable(first: RunningGateway) -> list[int]:
        found: list[int] = []
        offset = "-1"
        for each in (first, *[gateway] * 9):
            with (
                contextlib.suppress(OSError, http.client.HTTPException),
                each.events(f"{path}?offset={offset}&live=sse") as events,
            ):
                data: list[int] = []
                for event in events:
                    if event["event"] == "data":
                        data = json.loads(event["data"])
                        continue
                    # Where it resumes counts, as for the official clients.
                    offset = json.loads(event["data"])["streamNextOffset"]
                    found, data = found + data, []
                    if len(found) >= count:
                        return found
        raise AssertionError(found)

    with running_http_gateway(cluster.nats) as dying, ThreadPoolExecutor(5) as threads:
        readers = [threads.submit(read, dying) for read in (of_stream, of_durable) * 2]
        writer = threads.submit(write)
        assert halfway.wait(60)
        dying.kill()
        writer.result(60)
        for reader in readers:
            assert reader.result(60) == list(range(count))


async def test_a_gateway_that_stops_tells_its_followers(
    cluster: RunningUp, gateway: RunningGateway
) -> None:
    gateway.ask("PUT", "/v1/stream/stopping", Content_Type="text/plain")
    with running_http_gateway(cluster.nats) as other:
        url = f"ws://127.0.0.1:{other.port}/v1/watch/stopping"
        with (
            other.events("/v1/follow/stopping") as changes,
            other.events("/v1/stream/stopping?offset=now&live=sse") as durable,
        ):
            async with websockets.connect(url) as socket, asyncio.timeout(30):
                assert next(durable)["event"] == "control"
                await socket.recv()
                other.process.terminate()
                assert [event["event"] for event in changes] == ["ending"]
                assert list(durable) == []
                with pytest.raises(websockets.ConnectionClosed) as closed:
                    while True:
                        await socket.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1001
        assert await asyncio.to_thread(other.process.wait, 30) == 0


async def test_a_websocket_gets_the_changes_of_a_kv(gateway: RunningGateway) -> None:
    url = f"ws://127.0.0.1:{gateway.port}/v1/watch/presence"
    async with websockets.connect(url) as socket:
        await asyncio.to_thread(gateway.ask, "PUT", "/v1/kv/presence/ann", b"here")
        async with asyncio.timeout(30):
            while True:
                change = json.loads(await socket.recv())
                if "entry" in change:
                    break
    assert (change["entry"]["key"], change["entry"]["value"]) == ("ann", "here")
    with pytest.raises(websockets.InvalidStatus):
        await websockets.connect(url, origin=websockets.Origin("https://elsewhere.example"))


@pytest.mark.parametrize(
    ("path", "status"),
    [
        *(("/v1/stream/", 400), ("/v1/stream/a/../b", 400), ("/v1/stream/a%2f..", 404)),
        *(("/v1/stream/%ff", 400), ("/v1/stream/a%0d%0ab", 400), ("/v1/stream/__ds/x", 501)),
        *(("/v1/kv/", 404), ("/v1/kv/%ff/a", 400), ("/v1/k%76/a/b", 404), ("/nothing", 404)),
        *(("/v1/streams/a?start_seq=x", 400), ("/v1/streams/a?last=1&last=2", 400)),
        *(("/v1/streams/a?x=%ff", 400), ("/v1/stream/a?offset=1", 400), ("/v1/kv/a%00/b", 400)),
    ],
)
def test_paths_that_make_no_sense_get_problem_details(
    gateway: RunningGateway, path: str, status: int
) -> None:
    assert code_of(gateway.ask("GET", path))[0] == status


def test_pages_of_other_origins_are_refused(gateway: RunningGateway) -> None:
    elsewhere = gateway.ask("POST", "/v1/streams/chat", b"x", Origin="https://elsewhere.example")
    assert code_of(elsewhere) == (403, "origin_refused")
    own = f"http://127.0.0.1:{gateway.port}"
    assert gateway.ask("GET", "/v1/streams/chat", Origin=own).status == 200


def test_no_content_passes_for_another_field_or_event(gateway: RunningGateway) -> None:
    hostile = "a\r\nevent: control\rdata: {}\n\nid: 9\nretry: 1\n\n: b\u2028c"
    gateway.ask("PUT", "/v1/stream/lines", Content_Type="text/plain")
    gateway.ask("POST", "/v1/stream/lines", hostile.encode(), Content_Type="text/plain")
    with gateway.events("/v1/stream/lines?offset=-1&live=sse") as events:
        data, control = next(events), next(events)
    assert data["event"] == "data" and set(data) == {"event", "data"}
    assert data["data"].count("\n") == hostile.count("\r") + hostile.count("\n") - 1
    assert json.loads(control["data"])["upToDate"] is True
    sent = gateway.ask("POST", "/v1/streams/lines", hostile.encode(), Content_Type="text/plain")
    assert sent.status == 201
    with gateway.events("/v1/follow/lines?start_seq=1") as events:
        event = next(events)
    assert set(event) == {"event", "id", "data"}
    assert json.loads(event["data"])["message"]["value"] == hostile


def test_a_stored_media_type_that_is_no_header_is_left_out(
    cluster: RunningUp, gateway: RunningGateway
) -> None:
    stored = {"content-type": "text/html\r\nSet-Cookie: a=b"}
    with connect(cluster.nats) as client:
        client.kv("injected").set("key", b"x", headers=stored)
        client.stream("injected").append(b"x", headers=stored)
    for path in ("/v1/kv/injected/key", "/v1/streams/injected/1"):
        answer = gateway.ask("GET", path)
        assert (answer.status, answer.body) == (200, b"x")
        assert answer.headers["content-type"] == "application/octet-stream"
        assert "set-cookie" not in answer.headers


def test_the_openapi_document_has_the_methods_of_every_path(gateway: RunningGateway) -> None:
    served = gateway.ask("GET", "/v1/openapi.json")
    tag = served.headers["etag"]
    assert gateway.ask("GET", "/v1/openapi.json", If_None_Match=tag).status == 304
    for path, item in json.loads(served.body)["paths"].items():
        refused = gateway.ask("PATCH", re.sub(r"\{\w+\}", "1", path))
        assert code_of(refused) == (405, "method_not_allowed"), path
        documented = {name.upper() for name in item if name in _METHODS}
        allowed = set(refused.headers["allow"].split(", "))
        assert allowed - documented <= {"HEAD"} and documented <= allowed, path


def test_bytes_that_are_no_request_end_their_connection_alone(gateway: RunningGateway) -> None:
    head = b"GET /v1/streams/chat HTTP/1.1\r\nHost: a\r\n"
    with gateway.connected() as idle:
        idle.sendall(head[:20])
        for data in (
            *(b"\x00" * 100, b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"),
            *(b"CONNECT a:1 HTTP/1.1\r\n\r\n", b"GET \xff HTTP/1.1\r\nHost: a\r\n\r\n"),
            head + b"X: a\x00b\r\n\r\n",
            b"POST /v1/streams/c HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
            b"POST /v1/streams/c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"POST /v1/streams/c HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\ncut",
            head + b"X: " + b"a" * 2_000_000,
        ):
            answer = gateway.raw(data)
            assert b"Traceback" not in answer and not answer.startswith(b"HTTP/1.1 2"), data[:40]
    large = gateway.ask("POST", "/v1/streams/c", b"a" * 2_000_000)
    assert code_of(large) == (413, "too_large")
    assert gateway.ask("GET", "/v1/streams/chat").status == 200


def test_tokens_say_what_a_request_may(tmp_path: Path) -> None:
    with running_up(tmp_path / "data", "--servers", "1", "--auth") as cluster:
        tokens = {}
        for name, stores in (("ann", "ds.ann.>"), ("bob", "ds.bob.>")):
            file = tmp_path / name
            made = call_holdfast(
                *("token", "create", "--data", str(cluster.data / "shared")),
                *("--stores", stores, "--allow", "all", "--out", str(file)),
            )
            assert made.returncode == 0, made.stderr
            tokens[name] = f"Bearer {file.read_text().strip()}"
        with running_http_gateway(cluster.nats, "--require-token") as gateway:
            text = "text/plain"
            path = "/v1/stream/ann/a"
            made_by = gateway.ask("PUT", path, b"x", Content_Type=text, Authorization=tokens["ann"])
            assert made_by.status == 201, made_by
            assert gateway.ask("GET", path, Authorization=tokens["ann"]).body == b"x"
            assert code_of(gateway.ask("GET", path, Authorization=tokens["bob"]))[0] in (403, 404)
            other = gateway.ask("POST", path, b"y", Content_Type=text, Authorization=tokens["bob"])
            assert code_of(other)[0] in (403, 404)
            assert code_of(gateway.ask("GET", path)) == (401, "unauthorized")
            assert code_of(gateway.ask("GET", path, Authorization="Basic x"))[0] == 401
            assert code_of(gateway.ask("GET", path, Authorization="Bearer x"))[0] == 401


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), b"--jetstream or --http"),
        (("--http", "here"), b"HOST:PORT"),
        (("--http", "127.0.0.1:0", "--domain", "x"), b"--domain is for --jetstream"),
        (("--http", "127.0.0.1:0", "--certificate", "/no/such/file"), b"certificate"),
    ],
)
def test_a_gateway_that_cannot_start_says_what_to_do(
    cluster: RunningUp, options: tuple[str, ...], says: bytes
) -> None:
    result = _started(cluster, *options)
    assert result.returncode != 0 and says in result.stderr and b"Traceback" not in result.stderr


def test_a_port_in_use_is_named(cluster: RunningUp, gateway: RunningGateway) -> None:
    result = _started(cluster, "--http", f"127.0.0.1:{gateway.port}")
    assert result.returncode != 0 and b"another port" in result.stderr


def _started(cluster: RunningUp, *options: str) -> subprocess.CompletedProcess[bytes]:
    return run_holdfast("--nats", cluster.nats, "gateway", *options)


def test_the_console_api_shows_the_cluster_and_its_stores(gateway: RunningGateway) -> None:
    for number in range(3):
        assert gateway.ask("POST", "/v1/streams/looked.at", b"m%d" % number).status == 201
    assert gateway.ask("PUT", "/v1/kv/looked.kv/a%2Fb", b"1").status == 200
    found = gateway.ask("GET", "/api/v1/cluster")
    assert found.headers["cross-origin-resource-policy"] == "same-origin"
    assert found.headers["cache-control"] == "no-store"
    assert json.loads(found.body)["servers"][0]["state"] == "live"
    assert len(json.loads(gateway.ask("GET", "/api/v1/servers").body)["servers"]) == 1
    stores = json.loads(gateway.ask("GET", "/api/v1/stores?prefix=looked&limit=1").body)
    assert [each["name"] for each in stores["stores"]] == ["looked.at"] and stores["more"]
    stream = json.loads(gateway.ask("GET", "/api/v1/stores/stream/looked.at").body)
    assert (stream["count"], stream["changed"], stream["consumers"]) == (3, [], [])
    messages = gateway.ask("GET", "/api/v1/stores/stream/looked.at/messages?limit=2&end_seq=2")
    assert [each["value"] for each in json.loads(messages.body)["messages"]] == ["m0", "m1"]
    keys = json.loads(gateway.ask("GET", "/api/v1/stores/kv/looked.kv/keys").body)
    assert keys == {"keys": ["a/b"], "more": False}
    assert json.loads(gateway.ask("GET", "/api/v1/consumers").body)["consumers"] == []
    with gateway.events("/api/v1/live") as events:
        assert next(events)["event"] == "history"
        shown = json.loads(next(each for each in events if each["event"] == "overview")["data"])
    assert _faults("/api/v1/cluster", shown) == []


def _faults(path: str, found: Any) -> list[str]:
    """What an answer has that its schema in the document forbids or does not name."""
    whole = document()
    answers = whole["paths"][path]["get"]["responses"]["200"]["content"]
    schemas = {"components": whole["components"], **answers["application/json"]["schema"]}
    check = Draft202012Validator(_closed(schemas))
    return [f"{each.json_path}: {each.message}" for each in check.iter_errors(found)]


def _closed(schema: Any) -> Any:
    """A schema whose objects have the named properties alone."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _closed(each) for name, each in schema.items()}
    return {"additionalProperties": False, **found} if "properties" in found else found


def test_the_console_api_answers_what_the_openapi_document_says(
    cluster: RunningUp, gateway: RunningGateway
) -> None:
    with connect(cluster.nats) as client:
        jobs = client.stream("schemas.jobs")
        jobs.append(b"\xff", headers={"a": "b"}, subject="x.y")
        jobs.consumer("workers").info()
    assert gateway.ask("PUT", "/v1/kv/schemas.jobs/key", b"1").status == 200
    for path in document()["paths"]:
        if path.startswith("/api/v1/") and path != "/api/v1/live":
            answer = gateway.ask("GET", path.replace("{name}", "schemas.jobs"))
            assert answer.status == 200 and _faults(path, json.loads(answer.body)) == [], path


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("POST", "/api/v1/cluster", (405, "method_not_allowed")),
        ("DELETE", "/api/v1/stores/kv/x", (405, "method_not_allowed")),
        ("GET", "/api/v1/", (404, "not_found")),
        ("GET", "/api/v1/live/x", (404, "not_found")),
        ("GET", "/api/v1/stores/nothing/x", (404, "not_found")),
        ("GET", "/api/v1/stores/kv/x/messages", (404, "not_found")),
        ("GET", "/api/v1/stores/stream/..%2F..", (400, "invalid_name")),
        ("GET", "/api/v1/stores/stream/%ff", (400, "invalid_request")),
        ("GET", "/api/v1/stores?kind=table", (400, "invalid_request")),
        ("GET", "/api/v1/stores?limit=1000000", (400, "invalid_request")),
        ("GET", "/api/v1/stores?limit=-1", (400, "invalid_request")),
        ("GET", "/api/v1/stores/stream/x/messages?end_seq=x", (400, "invalid_request")),
    ],
)
def test_the_console_api_refuses_what_makes_no_sense(
    gateway: RunningGateway, method: str, path: str, expected: tuple[int, str]
) -> None:
    assert code_of(gateway.ask(method, path)) == expected


def test_a_strange_name_of_the_host_reads_and_writes_nothing(gateway: RunningGateway) -> None:
    strange = {"Host": "evil.example:80", "Origin": "http://evil.example:80"}
    for method, path in (("GET", "/api/v1/stores"), ("PUT", "/v1/kv/a/b"), ("GET", "/")):
        answer = gateway.request(method, path, None, strange)
        assert code_of(answer) == (421, "host_refused")

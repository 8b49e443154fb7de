"""What a part answers to probes and scrapers, whatever they send."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.monitoring.counting import Statistics
from holdfast.protocol.monitoring.description import PartKind
from holdfast.protocol.serving import monitor as monitor_module
from holdfast.protocol.serving.exposition import exposition
from holdfast.protocol.serving.monitor import MAX_CONNECTIONS, Monitor, MonitorAddress


def counting() -> Statistics:
    return Statistics(PartKind.PERSIST, "p1", 0)


@contextlib.asynccontextmanager
async def running(
    why_unready: Callable[[], str] | None = lambda: "", statistics: Statistics | None = None
) -> AsyncIterator[Monitor]:
    monitor = Monitor(MonitorAddress("127.0.0.1", 0))
    if why_unready is not None:
        monitor.watch(statistics or counting(), why_unready)
    async with monitor.listening():
        yield monitor


async def said(monitor: Monitor, request: bytes, *, eof: bool = False) -> bytes:
    """Return all that is answered to some bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", monitor.port)
    try:
        with contextlib.suppress(ConnectionError):
            writer.write(request)
            if eof:
                writer.write_eof()
            async with asyncio.timeout(20):
                return await reader.read()
        return b""
    finally:
        writer.close()


async def get(monitor: Monitor, path: str, *, method: str = "GET", host: str = "localhost") -> Any:
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}:{monitor.port}\r\n\r\n"
    answer = await said(monitor, head.encode())
    first, _, body = answer.partition(b"\r\n\r\n")
    return int(first.split()[1]), body.decode()


def run(work: Callable[[], Any]) -> None:
    asyncio.run(work())


def test_a_part_that_works_is_alive_and_ready() -> None:
    async def main() -> None:
        async with running() as monitor:
            assert await get(monitor, "/healthz") == (200, "alive\n")
            assert await get(monitor, "/readyz?verbose") == (200, "ready\n")
            assert await get(monitor, "/readyz", method="HEAD") == (200, "")

    run(main)


def test_a_part_that_does_not_work_says_why_and_is_alive() -> None:
    async def main() -> None:
        async with running(lambda: "there is no connection to NATS") as monitor:
            answer = (503, "not ready: there is no connection to NATS\n")
            assert await get(monitor, "/readyz") == answer
            assert await get(monitor, "/healthz") == (200, "alive\n")

    run(main)


def test_before_a_part_has_begun_it_is_alive_and_not_ready() -> None:
    async def main() -> None:
        async with running(None) as monitor:
            assert await get(monitor, "/healthz") == (200, "alive\n")
            for path in ("/readyz", "/metrics"):
                assert await get(monitor, path) == (503, "not ready: it starts\n")

    run(main)


def test_a_bug_in_what_is_asked_answers_that_request() -> None:
    def broken() -> str:
        raise ZeroDivisionError

    async def main() -> None:
        async with running(broken) as monitor:
            assert (await get(monitor, "/readyz"))[0] == 500
            assert (await get(monitor, "/healthz"))[0] == 200

    run(main)


def test_metrics_are_what_prometheus_reads() -> None:
    async def main() -> None:
        statistics = counting()
        statistics.histogram(metrics.APPEND_STAGES, "sync").observe(0.002, 5)
        statistics.histogram(metrics.APPEND_STAGES, "sync").observe(100.0)
        statistics.counters(metrics.ERRORS).add("busy", 2)
        async with running(statistics=statistics) as monitor:
            status, text = await get(monitor, "/metrics")
        assert status == 200
        families = {each.name: each for each in text_string_to_metric_families(text)}
        errors = families["holdfast_errors"].samples
        assert [(each.labels, each.value) for each in errors] == [({"code": "busy"}, 2)]
        stages = families["holdfast_persist_append_duration_seconds"]
        assert stages.type == "histogram"
        found = {each.labels.get("le"): each.value for each in stages.samples}
        assert (found["0.001"], found["0.0025"], found["10.0"], found["+Inf"]) == (0, 5, 5, 6)
        assert families["holdfast_build_info"].samples[0].labels["name"] == "p1"
        assert families["holdfast_process_resident_bytes"].samples[0].value > 1 << 20

    run(main)


def test_other_work_in_the_process_adds_its_numbers_and_no_readiness() -> None:
    async def work() -> None:
        server = counting()
        async with running(lambda: "it starts", server) as monitor:
            server.counter(metrics.ERRORS, "busy").value += 2
            gateway = Statistics(PartKind.GATEWAY_JETSTREAM, "g1", 0)
            monitor.beside().watch(gateway, lambda: "")
            assert (await get(monitor, "/readyz"))[0] == 503
            for name in ("g1", "g2"):
                another = Statistics(PartKind.GATEWAY_JETSTREAM, name, 0)
                another.read(metrics.SERVED_STREAMS, lambda: 7)
                another.counter(metrics.ERRORS, "busy").value += 3
                monitor.beside().watch(another, lambda: "")
            _, body = await get(monitor, "/metrics")
            families = {each.name: each for each in text_string_to_metric_families(body)}
            said = {
                sample.labels.get("name"): sample.labels.get("part")
                for sample in families["holdfast_build_info"].samples
            }
            assert set(said) == {"p1", "g2"}, "the last one of such work"
            assert len(families["holdfast_process_resident_bytes"].samples) == 1
            [streams] = families["holdfast_" + metrics.SERVED_STREAMS.name].samples
            assert streams.value == 7
            [errors] = families["holdfast_errors"].samples
            assert (errors.labels["code"], errors.value) == ("busy", 5), "of both"

    run(work)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", 404),
        (b"GET /../metrics HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\n12345", 405),
        (b"GET\r\n\r\n", 400),
        (b"GET http://elsewhere/ HTTP/1.1\r\n\r\n", 400),
        (b"GET /metrics HTTP/2.0\r\n\r\n", 400),
        (b"\xff\xfe \x00 \x01\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 20_000, 431),
        (b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nhost: evil.example:1\r\n\r\n", 403),
        (b"GET /healthz HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.0\r\n\r\n", 200),
    ],
)
def test_whatever_is_asked_is_answered(request_bytes: bytes, status: int) -> None:
    async def main() -> None:
        async with running() as monitor:
            answer = await said(monitor, request_bytes)
            assert answer.startswith(b"HTTP/1.1 %d " % status)
            assert (await get(monitor, "/healthz"))[0] == 200

    run(main)


def test_who_says_too_little_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor_module, "TIMEOUT_SECONDS", 0.05)

    async def main() -> None:
        async with running() as monitor:
            assert await said(monitor, b"GET /metrics HTTP/1.1\r\n") == b""
            assert await said(monitor, b"GET /metrics", eof=True) == b""
            assert (await get(monitor, "/healthz"))[0] == 200

    run(main)


def test_connections_beyond_the_limit_are_closed() -> None:
    async def main() -> None:
        async with running() as monitor, contextlib.AsyncExitStack() as stack:
            for _ in range(MAX_CONNECTIONS):
                _, writer = await asyncio.open_connection("127.0.0.1", monitor.port)
                stack.callback(writer.close)
            reader, writer = await asyncio.open_connection("127.0.0.1", monitor.port)
            stack.callback(writer.close)
            with contextlib.suppress(ConnectionError):
                async with asyncio.timeout(20):
                    assert await reader.read() == b""

    run(main)


def test_without_an_address_nobody_listens_and_a_taken_port_is_named() -> None:
    async def main() -> None:
        silent = Monitor(None)
        async with silent.listening():
            assert silent.port == 0
        async with running() as monitor:
            second = Monitor(MonitorAddress("127.0.0.1", monitor.port))
            with pytest.raises(InvalidArgumentError, match="cannot listen"):
                async with second.listening():
                    pass

    run(main)


def test_addresses() -> None:
    assert MonitorAddress.parse("0.0.0.0:9464") == ("0.0.0.0", 9464)
    assert MonitorAddress.parse("[::1]:0") == ("::1", 0)
    assert MonitorAddress.parse(":9464") == ("127.0.0.1", 9464)
    for wrong in ("", "9464", "host:", "host:http", "host:70000"):
        with pytest.raises(argparse.ArgumentTypeError):
            MonitorAddress.parse(wrong)


def test_text_of_labels_is_escaped() -> None:
    statistics = counting()
    statistics.counters(metrics.ERRORS).add('a"b\nc\\', 1)
    families = list(text_string_to_metric_families(exposition(statistics).decode()))
    assert families[0].samples[0].labels == {"code": 'a"b\nc\\'}

"""Gateways as processes: with `holdfast up`, and by themselves; what they refuse, and why."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import nats
import nats.errors
import pytest
from nats.js import JetStreamContext
from nats.js.errors import ServiceUnavailableError

from holdfast.cli.cluster.jetstream_part import is_in_servers
from holdfast.cli.cluster.ports import free_port
from holdfast.protocol.bus.nats_server_process import usable_cores
from tests.support.holdfast_up import (
    RunningUp,
    call_holdfast,
    is_running,
    run_holdfast,
    running_up,
    started_holdfast,
    wait_until,
)
from tests.support.leaf_nats import running_leaf_nats
from tests.support.nats_server import running_nats_server

#: The part of `up` that is the gateway; with one server.
GATEWAY = "s1" if is_in_servers(usable_cores()) else "gateway"
DOCUMENT = Path(__file__).parents[2] / "docs/operations.md"


@contextlib.asynccontextmanager
async def jetstream(url: str) -> AsyncIterator[JetStreamContext]:
    """JetStream as an application sees it."""
    client = await nats.connect(url, max_reconnect_attempts=-1, reconnect_time_wait=0.1)
    try:
        yield client.jetstream()
    finally:
        await client.close()


async def published(js: JetStreamContext, subject: str, payload: bytes) -> int:
    """Publish as applications must, whose message may be lost: again until it is acknowledged."""
    async with asyncio.timeout(40.0):
        while True:
            try:
                ack = await js.publish(subject, payload, timeout=2.0)
            except (nats.errors.Error, ServiceUnavailableError):
                await asyncio.sleep(0.05)
            else:
                return ack.seq


def kill(cluster: RunningUp, part: str) -> None:
    """End a part, and return once it runs again."""
    before = cluster.pids()[part]
    assert before is not None
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: cluster.pids()[part] not in (before, None), f"{part} runs again")


async def test_up_with_jetstream_serves_its_clients_whatever_dies(tmp_path: Path) -> None:
    with running_up(tmp_path / "data", "--servers", "1", "--jetstream") as cluster:
        assert cluster.welcome["jetstream"] is True
        async with jetstream(cluster.nats) as js:
            assert (await js.account_info()).streams == 0
            await js.add_stream(name="S", subjects=["s.>"])
            assert await published(js, "s.1", b"first") == 1
            for part in (GATEWAY, "nats-server"):
                await asyncio.to_thread(kill, cluster, part)
                await published(js, "s.1", part.encode())
            info = await js.stream_info("S")
            assert (await js.get_msg("S", 1)).data == b"first"
            assert (await js.get_msg("S", info.state.last_seq)).data == b"nats-server"
        pids = [pid for pid in cluster.pids().values() if pid is not None]
        assert cluster.stop() == 0
        assert not any(is_running(pid) for pid in pids)


async def test_a_gateway_that_hangs_keeps_no_other_from_serving(tmp_path: Path) -> None:
    with running_leaf_nats(tmp_path) as (server, leafnodes):
        places = ("--nats", server.url, "--leafnodes", leafnodes)
        options = ("--servers", "1", "--nats", server.url)
        logs = [tmp_path / "first.log", tmp_path / "second.log"]
        with (
            running_up(tmp_path / "data", *options, own_nats=False),
            logs[0].open("wb") as stderr,
            started_holdfast("gateway", "--jetstream", *places, stderr=stderr) as hanging,
        ):
            wait_until(lambda: "jetstream.serving" in logs[0].read_text(), "the first one serves")
            async with jetstream(server.url) as js:
                await js.add_stream(name="S", subjects=["s.>"])
                hanging.send_signal(signal.SIGSTOP)
                try:
                    with (
                        logs[1].open("wb") as stderr,
                        started_holdfast("gateway", "--jetstream", *places, stderr=stderr),
                    ):
                        assert await published(js, "s.1", b"v") == 1, logs[1].read_text()
                        assert "jetstream.serving" in logs[1].read_text()
                finally:
                    hanging.send_signal(signal.SIGCONT)


async def test_up_joins_a_nats_and_its_leafnode_listener(tmp_path: Path) -> None:
    with running_leaf_nats(tmp_path) as (server, leafnodes):
        options = ("--servers", "1", "--nats", server.url, "--jetstream")
        refused = call_holdfast("up", "--data", str(tmp_path / "data"), *options)
        assert refused.returncode == 2 and b"--leafnodes URL" in refused.stderr
        options += ("--leafnodes", leafnodes)
        with running_up(tmp_path / "data", *options, own_nats=False) as cluster:
            assert set(cluster.pids()) == {"coordinator", "s1", GATEWAY}
            async with jetstream(server.url) as js:
                await js.add_stream(name="S", subjects=["s.>"])
                assert await published(js, "s.1", b"v") == 1


def test_up_ends_if_its_nats_has_jetstream_already(tmp_path: Path) -> None:
    store = f'jetstream {{ store_dir: "{tmp_path / "store"}" }}'
    with running_leaf_nats(tmp_path / "js", configuration=store) as (server, leafnodes):
        places = ("--nats", server.url, "--leafnodes", leafnodes)
        refused = run_holdfast(
            *("up", "--data", str(tmp_path / "data"), "--servers", "1", "--no-http"),
            *("--jetstream", *places),
        )
        assert refused.returncode == 1
        assert b"the account has JetStream already" in refused.stderr


@contextlib.contextmanager
def documented_nats(directory: Path) -> Iterator[tuple[str, int]]:
    """Run nats-server with the configuration with accounts of the document; give the address of its
    clients, and the port of leafnodes."""
    blocks = re.findall(
        r"^```\n(port: 4222.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL
    )
    [text] = [each for each in blocks if "accounts {" in each]
    port = free_port()
    text = text.replace('"..."', "secret").replace("7422", str(port)).replace("port: 4222", "")
    directory.mkdir()
    file = directory / "nats.conf"
    file.write_text(text)
    with running_nats_server(directory, "-c", str(file)) as server:
        yield f"127.0.0.1:{server.port}", port


async def test_the_documented_accounts_and_permissions_let_everyone_do_their_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with documented_nats(tmp_path / "nats") as (address, leaf_port):
        monkeypatch.setenv("HOLDFAST_NATS", f"nats://holdfast:secret@{address}")
        monkeypatch.setenv("HOLDFAST_JETSTREAM_NATS", f"nats://gateway:secret@{address}")
        monkeypatch.setenv("HOLDFAST_LEAFNODES", f"nats-leaf://leaf:secret@127.0.0.1:{leaf_port}")
        log = tmp_path / "gateway.log"
        with (
            running_up(tmp_path / "data", "--servers", "1", own_nats=False),
            log.open("wb") as stderr,
            started_holdfast("gateway", "--jetstream", "--domain", "d", stderr=stderr) as gateway,
        ):
            try:
                wait_until(lambda: "jetstream.serving" in log.read_text(), "the gateway serves")
                async with jetstream(f"nats://app:secret@{address}") as js:
                    await js.add_stream(name="ORDERS", subjects=["orders.>"])
                    assert await published(js, "orders.1", b"v") == 1
                    in_domain = js._nc.jetstream(domain="d")
                    assert (await in_domain.stream_info("ORDERS")).state.messages == 1
                assert "secret" not in log.read_text() + _command_line(gateway.pid)
                # Its own heartbeats, and all that it answers, are permitted.
                assert "Violation" not in log.read_text()
            finally:
                gateway.terminate()
                assert gateway.wait(30.0) == 0


def _command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode()


def refused(*arguments: str, **environment: str) -> str:
    """Run a gateway that cannot serve; return its one line."""
    variables = {f"HOLDFAST_{name.upper()}": value for name, value in environment.items()}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        result = run_holdfast("gateway", "--jetstream", "--log-level", "error", *arguments)
    assert result.returncode == 1, result.stderr
    [line] = result.stderr.decode().splitlines()
    assert " Try: " in line and "secret" not in line
    return line


def test_a_gateway_refuses_an_account_with_jetstream_and_one_that_it_cannot_hear(
    tmp_path: Path,
) -> None:
    with running_leaf_nats(
        tmp_path / "js", configuration=f'jetstream {{ store_dir: "{tmp_path / "store"}" }}'
    ) as (server, leafnodes):
        line = refused("--nats", server.url, "--leafnodes", leafnodes)
        assert "JetStream already" in line
    with documented_nats(tmp_path / "nats") as (address, port):
        url, leafnodes = (
            f"nats://app:secret@{address}",
            f"nats-leaf://holdfast:secret@127.0.0.1:{port}",
        )
        assert "in another account" in refused(nats=url, leafnodes=leafnodes)
        line = refused(nats=url, leafnodes=f"nats-leaf://app:wrong-secret@127.0.0.1:{port}")
        assert "does not accept this user as a leafnode" in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gateway",), "--jetstream"),
        (
            ("persist", "--name", "s1", "--data", "d", "--leafnodes", "nats-leaf://h:1"),
            "--leafnodes is for --jetstream",
        ),
        (
            (
                *("persist", "--name", "s1", "--data", "d", "--jetstream"),
                *("--leafnodes", "nats-leaf://a:secret@h:1"),
            ),
            "HOLDFAST_LEAFNODES",
        ),
        (
            ("gateway", "--jetstream", "--leafnodes", "nats-leaf://a:secret@h:1"),
            "HOLDFAST_LEAFNODES",
        ),
        (("gateway", "--jetstream", "--jetstream-nats", "nats://a:secret@h:1"), "JETSTREAM_NATS"),
        (("gateway", "--jetstream", "--domain", "a.b"), "not a domain"),
        (("up", "--jetstream", "--auth"), "--auth asks for tokens"),
        (("up", "--leafnodes", "nats-leaf://h:1"), "--leafnodes is for --jetstream"),
        (("up", "--jetstream", "--leafnodes", "nats-leaf://h:1"), "name it with --nats"),
        (
            (
                "up",
                "--jetstream",
                "--nats",
                "nats://h:1",
                "--leafnodes",
                "nats-leaf://a:secret@h:1",
            ),
            "HOLDFAST_LEAFNODES",
        ),
    ],
)
def test_wrong_usage_is_told(arguments: tuple[str, ...], said: str) -> None:
    result: subprocess.CompletedProcess[bytes] = call_holdfast(*arguments)
    assert result.returncode == 2
    assert said in result.stderr.decode().replace("\n", " ") or said == "not a domain"


def test_up_with_jetstream_refuses_data_whose_cluster_asks_for_tokens(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert call_holdfast("auth", "init", "--data", str(data / "shared")).returncode == 0
    result = run_holdfast("up", "--data", str(data), "--port", "0", "--jetstream")
    assert result.returncode == 1
    assert "asks for tokens" in result.stderr.decode() and " Try: " in result.stderr.decode()

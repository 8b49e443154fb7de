"""A gateway's leafnode connection and real nats-servers: who is let in, what each refusal says, a
NATS that is stuck, and one that is a cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import quote

import nats
import nkeys
import pytest
import uvloop
from nats.aio.msg import Msg

from holdfast.cli.cluster.ports import free_port
from holdfast.gateway.jetstream.wire import client_connection, leaf_session
from holdfast.gateway.jetstream.wire.client_connection import connect_client
from holdfast.gateway.jetstream.wire.leaf_connection import LeafConnection, connect_leaf
from holdfast.protocol.bus import nats_client
from holdfast.protocol.bus.login import NatsLogin, TlsFiles
from holdfast.protocol.errors import InvalidArgumentError, LoginFailedError
from holdfast.protocol.limits import PORT_BUSY_BYTES
from tests.support.certificates import TestCa
from tests.support.leaf_nats import running_leaf_nats
from tests.support.nats_keys import Operator, new_seed, public_key, secret_file
from tests.support.stalling_proxy import stalling_proxy
from tests.support.waiting import until

ACK = "$JS.ACK.S.C.1.2.3.1234567890123456789.4"
PASSWORD = "p@ss:w/ö%"


@pytest.fixture(params=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    """Gateways run with uvloop, whose transports are others."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        yield runner


@contextlib.asynccontextmanager
async def leaf_to(url: str, login: NatsLogin | None = None) -> AsyncIterator[LeafConnection]:
    """A connection, closed in the end."""
    leaf = await connect_leaf(url, name="test", login=login or NatsLogin())
    try:
        yield leaf
    finally:
        await leaf.close()


async def delivered(client_url: str, leaf: LeafConnection, **options: object) -> None:
    """Deliver a message to a client of nats-py."""
    client = await nats.connect(client_url, **options)  # type: ignore[arg-type]
    heard: list[Msg] = []

    async def hear(message: Msg) -> None:
        heard.append(message)

    await client.subscribe("_INBOX.x", cb=hear)
    await client.flush()
    await until(lambda: leaf.has_interest("_INBOX.x"), "the interest is told")
    leaf.deliver("_INBOX.x", b"v", reply=ACK, subject="s.1", headers=b"NATS/1.0\r\nA: b\r\n\r\n")
    await until(lambda: heard, "it arrives")
    assert (heard[0].subject, heard[0].reply, heard[0].data) == ("s.1", ACK, b"v")
    assert heard[0].headers == {"A": "b"} and heard[0].metadata.sequence.stream == 2
    await client.close()


async def refusal(url: str, login: NatsLogin | None = None) -> str:
    with pytest.raises(LoginFailedError) as caught:
        async with leaf_to(url, login):
            pass
    said = str(caught.value)
    assert " Try: " in said and "sesame" not in said and PASSWORD not in said
    return said


async def test_a_password_lets_in_and_another_one_is_refused_with_what_to_do(
    tmp_path: Path,
) -> None:
    users = f'users = [ {{ user: gw, password: "{PASSWORD}", account: A }} ]'
    with running_leaf_nats(
        tmp_path,
        leafnodes=f"authorization {{ {users} }}",
        configuration="accounts { A { users = [ { user: a, password: a } ] } }",
    ) as (server, url):
        secret = quote(PASSWORD, safe="")
        async with leaf_to(url.replace("//", f"//gw:{secret}@")) as leaf:
            await delivered(server.url.replace("//", "//a:a@"), leaf)
        for wrong in ("gw:sesame@", "other:sesame@", ""):
            said = await refusal(url.replace("//", f"//{wrong}"))
            assert "does not accept this user as a leafnode" in said
            assert "HOLDFAST_LEAFNODES" in said


async def test_an_nkey_and_a_credentials_file_let_in(tmp_path: Path) -> None:
    seed = new_seed(nkeys.PREFIX_BYTE_USER)
    login = NatsLogin(nkey=secret_file(tmp_path / "nkey", seed))
    users = f"authorization {{ nkey: {public_key(seed)} }}"
    with running_leaf_nats(tmp_path / "a", leafnodes=users) as (server, url):
        async with leaf_to(url, login) as leaf:
            await delivered(server.url, leaf)
    operator = Operator()
    login = NatsLogin(credentials=operator.credentials(tmp_path / "creds"))
    with running_leaf_nats(tmp_path / "b", configuration=operator.configuration) as (server, url):
        async with leaf_to(url, login) as leaf:
            await delivered(server.url, leaf, user_credentials=str(tmp_path / "creds"))
        late = NatsLogin(credentials=operator.credentials(tmp_path / "late", expired=True))
        assert "does not accept this user" in await refusal(url, late)


async def test_tls_is_used_when_it_is_asked_for_and_never_left_out(
    runner: asyncio.Runner, tmp_path: Path
) -> None:
    ca, stranger = TestCa(tmp_path / "ours"), TestCa(tmp_path / "theirs")
    cert, key = ca.signed("server")
    tls = f'tls {{ cert_file: "{cert}", key_file: "{key}" }}'
    ours, theirs = NatsLogin(tls=TlsFiles(ca=ca.file)), NatsLogin(tls=TlsFiles(ca=stranger.file))
    with running_leaf_nats(tmp_path / "tls", leafnodes=tls) as (server, url):
        async with leaf_to(url, ours) as leaf:
            await delivered(server.url, leaf)
            leaf.deliver("nobody", b"x" * 900_000)
            back = asyncio.Event()
            leaf.on_reconnect(back.set)
            server.restart()
            await back.wait()
            await delivered(server.url, leaf)
        assert "no CA that is trusted here" in await refusal(url, theirs)
        assert "no CA that is trusted here" in await refusal(url)
    with running_leaf_nats(tmp_path / "plain") as (_, url):
        assert "it offers no TLS" in await refusal(url, ours)
        assert "it offers no TLS" in await refusal(url.replace("nats-leaf", "tls"))


async def test_what_is_no_leafnode_listener_is_told_with_what_to_do(tmp_path: Path) -> None:
    with running_leaf_nats(tmp_path, configuration=f"http: 127.0.0.1:{(port := free_port())}") as (
        server,
        url,
    ):
        said = await refusal(f"nats-leaf://127.0.0.1:{server.port}")
        assert "that port is for clients" in said and "leafnodes { listen:" in said
        nothing = f"nats-leaf://127.0.0.1:{free_port()}"
        said = await refusal(nothing)
        assert "nothing listens there" in said and "only when it starts" in said
        # The next server of the list is as good.
        async with leaf_to(f"{nothing},{url}") as leaf:
            assert leaf.connected
        with pytest.raises(LoginFailedError):
            async with asyncio.timeout(9.0):
                await connect_leaf(
                    f"nats-leaf://127.0.0.1:{port}", name="test", timeout_seconds=0.3
                )
    with pytest.raises(InvalidArgumentError):
        await connect_leaf("wss://127.0.0.1:1", name="test")


async def test_a_patient_connection_waits_for_a_nats_that_starts_later(tmp_path: Path) -> None:
    with running_leaf_nats(tmp_path) as (server, url):
        server.kill()
        connecting = asyncio.create_task(
            connect_leaf(url, name="test", timeout_seconds=30.0, patient=True)
        )
        await asyncio.sleep(0)
        await asyncio.to_thread(server.start)
        leaf = await connecting
        assert leaf.connected
        await leaf.close()


async def test_a_nats_that_takes_nothing_costs_no_more_memory_than_the_bound(
    runner: asyncio.Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = 3 * PORT_BUSY_BYTES
    for module in (leaf_session, client_connection):
        monkeypatch.setattr(module, "MAX_PORT_WAITING_BYTES", bound)
    for module in (leaf_session, nats_client):
        monkeypatch.setattr(module, "BUS_LOOK_SECONDS", 0.2)
    with running_leaf_nats(tmp_path) as (server, url):
        leaf_port = int(url.rpartition(":")[2])
        async with stalling_proxy(leaf_port) as proxy, stalling_proxy(server.port) as other:
            leaf = await connect_leaf(proxy.url, name="test")
            client = await connect_client(other.url, name="test")
            proxy.stall()
            other.stall()
            payload, sent_bytes, held_back = b"x" * 500_000, 0, [0, 0]
            while leaf.connected and client.connected and sent_bytes < 8 * bound:
                for _ in range(4):
                    leaf.deliver("inbox", payload)
                    client.publish("inbox", payload)
                    sent_bytes += len(payload)
                await asyncio.sleep(0)
                held_back[0] += not leaf.writable
                held_back[1] += not client.writable
                waiting = leaf._session._pending_bytes if leaf._session else 0
                assert waiting <= bound + 2 * PORT_BUSY_BYTES
            assert sent_bytes <= bound + 8 * PORT_BUSY_BYTES
            assert all(held_back), "whoever asked knew long before"
            proxy.heal()
            other.heal()
            await until(lambda: leaf.writable and client.writable, "both are connected again")
            await leaf.close()
            await client.close()


async def test_a_connection_that_passes_nothing_any_more_is_replaced(
    runner: asyncio.Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaf_session, "BUS_LOOK_SECONDS", 0.1)
    with running_leaf_nats(tmp_path) as (_, url):
        async with stalling_proxy(int(url.rpartition(":")[2])) as proxy:
            leaf = await connect_leaf(proxy.url, name="test")
            proxy.stall()
            await until(lambda: not leaf.connected, "silence is noticed")
            proxy.heal()
            await until(lambda: leaf.connected)
            assert proxy.accepted_count >= 2
            await leaf.close()


async def test_all_interest_is_known_once_connected_and_over_a_nats_cluster(
    tmp_path: Path,
) -> None:
    routes = [f"nats://127.0.0.1:{free_port()}" for _ in range(2)]
    with contextlib.ExitStack() as running:
        servers = [
            running.enter_context(
                running_leaf_nats(
                    tmp_path / name,
                    options=("--cluster_name", "c", "--cluster", own, "--routes", ",".join(routes)),
                )
            )
            for name, own in zip(("a", "b"), routes, strict=True)
        ]
        app = await connect_client(servers[0][0].url, name="app")
        for number in range(5000):
            await app.subscribe(f"_INBOX.{number}", print, "q" if number % 2 else "")
        await app.flush()
        async with leaf_to(servers[0][1]) as near:
            assert all(near.has_interest(f"_INBOX.{number}") for number in range(5000))
            async with leaf_to(servers[1][1]) as far:
                await until(lambda: far.has_interest("_INBOX.4998"), "the route is there")
                await delivered(servers[0][0].url, far)
        await app.close()


async def test_names_that_break_lines_come_from_clients_and_harm_nothing(tmp_path: Path) -> None:
    with running_leaf_nats(tmp_path) as (server, url):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        async with leaf_to(url) as leaf:
            subjects = [b"a\x0bb", b"\xff", b"a", b"b.\xc2\x85", b"LS+"]
            lines = [b"SUB %b q\x0b%d %d\r\n" % (each, n, n) for n, each in enumerate(subjects)]
            lines += [b"SUB %b %d\r\n" % (each, n + 50) for n, each in enumerate(subjects)]
            writer.write(b'CONNECT {"verbose":false}\r\n' + b"".join(lines))
            writer.write(b"PUB a \xff\x0b 0\r\n\r\nPING\r\n")
            await until(lambda: leaf.has_interest("LS+"), "what is fine is known")
            assert leaf.has_plain_interest("a") and not leaf.queue_groups("a")
            await delivered(server.url, leaf)
        writer.close()

"""Real nats-servers that ask who is there, and TLS: what is let in, and what each refusal says."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import nkeys
import pytest

from holdfast.client import LoginFailedError, TlsFiles, connect
from holdfast.protocol.bus import bus_nats
from holdfast.protocol.bus.bus_nats import connect_nats
from holdfast.protocol.bus.login import NatsLogin
from holdfast.protocol.errors import ConnectionFailedError, InvalidArgumentError
from tests.support.certificates import TestCa
from tests.support.nats_keys import Operator, new_seed, public_key, secret_file
from tests.support.nats_server import NatsServer, running_nats_server
from tests.support.received import Received, unknown_nats_py

PASSWORD = "p@ss:w/ö%"


@dataclass(frozen=True)
class World:
    """A CA, one that nobody trusts, and a nats-server that asks for a client certificate and a
    password."""

    ca: TestCa
    stranger: TestCa
    server: NatsServer
    folder: Path


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("login")
    ca, stranger = TestCa(folder / "ours"), TestCa(folder / "theirs")
    options = [*tls_options(*ca.signed("server")), "--tlsverify", "--tlscacert", str(ca.file)]
    with running_nats_server(folder, *options, "--user", "ada", "--pass", PASSWORD) as server:
        yield World(ca, stranger, server, folder)


def tls_options(cert: Path, key: Path) -> list[str]:
    return ["--tls", "--tlscert", str(cert), "--tlskey", str(key)]


def url_of(server: NatsServer, user: str = f"ada:{quote(PASSWORD, safe='')}") -> str:
    return server.url.replace("//", f"//{user}@")


async def greet(url: str, login: NatsLogin) -> None:
    """Connect, and hear oneself."""
    bus, received = await connect_nats(url, name="test", login=login), Received()
    try:
        await bus.subscribe("greeting", received)
        await bus.publish("greeting", b"hello")
        assert (await received.first(1))[0].payload == b"hello"
    finally:
        await bus.close()


async def refusal(url: str, login: NatsLogin) -> str:
    with pytest.raises(LoginFailedError) as caught:
        await greet(url, login)
    said = str(caught.value)
    assert PASSWORD not in said
    assert "sesame" not in said
    assert "\n" not in said
    assert " Try: " in said
    return said


async def test_a_password_and_a_client_certificate_let_in(world: World) -> None:
    files = dict(zip(("cert", "key"), world.ca.signed("client"), strict=True))
    await greet(url_of(world.server), NatsLogin(tls=TlsFiles(ca=world.ca.file, **files)))
    # As options of a client, instead of in the URL.
    async with connect(
        world.server.url,
        tls=TlsFiles(ca=world.ca.file, **files).context(),
        user="ada",
        password=PASSWORD,
    ) as client:
        assert client.connected


async def test_each_refusal_says_what_to_try(world: World) -> None:
    url, ca = url_of(world.server), world.ca.file
    ours = TlsFiles(ca=ca, **dict(zip(("cert", "key"), world.ca.signed("c1"), strict=True)))
    old = world.ca.signed("c2", expired=True)
    for wrong_url, tls, expected in (
        (url_of(world.server, "ada:sesame"), ours, "does not accept this user.*HOLDFAST_NATS"),
        (url_of(world.server, "sesame"), ours, "does not accept this user.*--nats-creds"),
        (url, None, "no CA that is trusted here.*--tls-ca FILE"),
        (url, TlsFiles(ca=world.stranger.file), "no CA that is trusted here.*--tls-ca FILE"),
        (url, TlsFiles(ca=ca), "client certificate"),
        (url, TlsFiles(ca=ca, cert=old[0], key=old[1]), "client certificate"),
    ):
        assert re.search(expected, await refusal(wrong_url, NatsLogin(tls=tls))), expected


async def test_a_server_whose_certificate_does_not_fit_is_refused(tmp_path: Path) -> None:
    ca = TestCa(tmp_path)
    login = NatsLogin(tls=TlsFiles(ca=ca.file))
    for certificate, expected in (
        (ca.signed("old", expired=True), "its certificate has expired"),
        (ca.signed("elsewhere", host="127.0.0.9"), "its certificate is for other hosts"),
    ):
        with running_nats_server(tmp_path, *tls_options(*certificate)) as server:
            assert expected in await refusal(server.url, login)


async def test_who_requires_tls_gives_no_secret_to_a_server_without(tmp_path: Path) -> None:
    heard = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"max_payload":1048576,"auth_required":true}\r\n')
        while data := await reader.read(4096):
            heard.extend(data)
        writer.close()

    ca = TestCa(tmp_path)
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        address = f"ada:sesame@127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        for url, tls in ((f"nats://{address}", TlsFiles(ca=ca.file)), (f"tls://{address}", None)):
            assert "it offers no TLS" in await refusal(url, NatsLogin(tls=tls))
    assert heard == b""


async def test_tls_is_used_where_it_is_only_offered(tmp_path: Path) -> None:
    ca = TestCa(tmp_path)
    configuration = tmp_path / "nats.conf"
    cert, key = ca.signed("server")
    configuration.write_text(
        f'tls {{cert_file: "{cert}", key_file: "{key}"}}\nallow_non_tls: true\n'
    )
    with running_nats_server(tmp_path, "-c", str(configuration)) as server:
        await greet(server.url, NatsLogin())
        await greet(server.url, NatsLogin(tls=TlsFiles(ca=ca.file)))
        # With another CA, the same server is refused: so TLS was used.
        other = TestCa(tmp_path / "theirs").file
        assert "--tls-ca" in await refusal(server.url, NatsLogin(tls=TlsFiles(ca=other)))


async def test_a_nats_py_that_is_not_known_connects_without_tls_only(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its own client logs in without TLS if the server offers none.
    monkeypatch.setattr(bus_nats, "check_nats_py", unknown_nats_py)
    with pytest.raises(ConnectionFailedError, match="not known"):
        await connect(url_of(world.server), tls=TlsFiles(ca=world.ca.file))


async def test_a_renewed_certificate_counts_from_the_next_connection(tmp_path: Path) -> None:
    ca, next_ca = TestCa(tmp_path / "one"), TestCa(tmp_path / "two")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(ca.file.read_bytes())
    cert, key = ca.signed("server")
    with running_nats_server(tmp_path, *tls_options(cert, key)) as server:
        login = NatsLogin(tls=TlsFiles(ca=trusted))
        bus, returned = await connect_nats(server.url, name="test", login=login), asyncio.Event()
        try:
            bus.on_reconnect(returned.set)
            for before, after in zip((cert, key), next_ca.signed("server"), strict=True):
                before.write_bytes(after.read_bytes())
            trusted.write_bytes(next_ca.file.read_bytes())
            await asyncio.to_thread(server.restart)
            await returned.wait()
            await bus.flush()
        finally:
            await bus.close()


async def test_an_nkey_lets_in(tmp_path: Path) -> None:
    seed, other = (new_seed(nkeys.PREFIX_BYTE_USER) for _ in range(2))
    configuration = tmp_path / "nats.conf"
    configuration.write_text(f"authorization {{users: [{{nkey: {public_key(seed)}}}]}}\n")
    with running_nats_server(tmp_path, "-c", str(configuration)) as server:
        await greet(server.url, NatsLogin(nkey=secret_file(tmp_path / "seed", f"{seed}\n")))
        wrong = NatsLogin(nkey=secret_file(tmp_path / "other", other))
        said = await refusal(server.url, wrong)
        assert "does not accept this user" in said
        assert other not in said


async def test_credentials_let_in_and_are_read_anew_for_each_connection(tmp_path: Path) -> None:
    operator = Operator()
    configuration = tmp_path / "nats.conf"
    configuration.write_text(operator.configuration)
    file = operator.credentials(tmp_path / "ada.creds")
    with running_nats_server(tmp_path, "-c", str(configuration)) as server:
        expired = operator.credentials(tmp_path / "old.creds", expired=True)
        assert "does not accept this user" in await refusal(
            server.url, NatsLogin(credentials=expired)
        )
        login = NatsLogin(credentials=file)
        await greet(server.url, login)
        bus, returned = await connect_nats(server.url, name="test", login=login), asyncio.Event()
        try:
            bus.on_reconnect(returned.set)
            operator.credentials(file)
            await asyncio.to_thread(server.restart)
            await returned.wait()
            await bus.flush()
        finally:
            await bus.close()


async def test_a_file_that_is_no_login_is_refused_before_anything_is_sent(world: World) -> None:
    ours = TlsFiles(ca=world.ca.file)
    for login in (
        NatsLogin(credentials=world.ca.file, tls=ours),
        NatsLogin(nkey=world.folder / "none", tls=ours),
    ):
        with pytest.raises(InvalidArgumentError):
            await connect_nats(world.server.url, name="test", login=login)

"""The auth service behind a real nats-server: who is let in, and what that one may do there.

`HOLDFAST_TEST_NATS_SERVER` names another nats-server than the installed one.
"""

from __future__ import annotations

import asyncio
import os
import re
import runpy
import secrets
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from nacl.signing import SigningKey

from holdfast.gateway.auth.nats_configuration import static_configuration
from holdfast.protocol.access.own_token import OwnToken
from holdfast.protocol.access.rights import Right
from holdfast.protocol.access.tokens import TokenLimits, new_token, read_token, sign_token
from holdfast.protocol.bus.bus import Bus, BusMessage
from holdfast.protocol.bus.bus_nats import connect_nats
from holdfast.protocol.bus.login import NatsLogin
from holdfast.protocol.errors import ConnectionFailedError, LoginFailedError, NotAllowedError
from holdfast.protocol.subjects import CLUSTER_TENANT, Inboxes, Subjects
from holdfast.shared_fs.access.key_folder import AUTH_FILE, REPORTS_FILE, SERVERS_FILE, SYSTEM_FILE
from holdfast.shared_fs.access.registry import Issuer
from tests.support.auth_world import AuthWorld, auth_world
from tests.support.documents import ROOT
from tests.support.effort import tries
from tests.support.nats_server import running_nats_server
from tests.support.raw_nats import RawConnection, publication
from tests.support.waiting import eventually, until

#: What docs/generate/access_table.py knows of the table in docs/access.md.
TABLE = runpy.run_path(str(ROOT / "docs" / "generate" / "access_table.py"))
#: How its users without a token log in.
KEY_FILES = {
    "servers": SERVERS_FILE,
    "auth service": AUTH_FILE,
    "auth service, system account": SYSTEM_FILE,
    "reports": REPORTS_FILE,
}
#: How long a refusal may take: nats-server answers at once.
_PATIENCE_SECONDS = 20.0


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuthWorld]:
    """A nats-server and two auth services, for tests that leave them as they were."""
    with auth_world(tmp_path_factory.mktemp("auth"), services=2) as world:
        yield world


async def log_in(world: AuthWorld, text: str, seconds: float = _PATIENCE_SECONDS) -> Bus:
    """Connect with a token. Raises ConnectionFailedError."""
    token = read_token(text)
    tenant = CLUSTER_TENANT if token.is_operator else token.tenant
    return await connect_nats(
        world.nats.url,
        name="test",
        login=NatsLogin(
            options={**OwnToken(lambda: text).nats_options(), "connect_timeout": seconds}
        ),
        inboxes=Inboxes(tenant=tenant, own=token.id),
    )


@asynccontextmanager
async def logged_in(world: AuthWorld, text: str) -> AsyncIterator[Bus]:
    bus = await log_in(world, text)
    try:
        yield bus
    finally:
        await bus.close()


@asynccontextmanager
async def by_nkey(world: AuthWorld, name: str) -> AsyncIterator[Bus]:
    login = NatsLogin(nkey=world.keys.path / name)
    bus = await connect_nats(world.nats.url, name="test", login=login)
    try:
        yield bus
    finally:
        await bus.close()


async def is_refused(world: AuthWorld, text: str, reason: str) -> None:
    """Show that a token lets nobody in, that the log says why, and that it does not say which."""
    before = world.log.count("auth.refused")
    with pytest.raises(ConnectionFailedError) as caught:
        login = NatsLogin(options={"token": text, "connect_timeout": _PATIENCE_SECONDS})
        bus = await connect_nats(world.nats.url, name="test", login=login)
        await bus.close()
    await until(lambda: world.log.count("auth.refused") > before, "the refusal is logged")
    refusals = [line for line in world.log.splitlines() if "auth.refused" in line]
    assert any(re.search(reason, line) for line in refusals), refusals
    for said in (str(caught.value), world.log):
        assert len(text) < 40 or text not in said
        assert len(text) < 40 or text.split(".")[-1] not in said


async def test_a_valid_token_lets_its_holder_ask_in_its_own_name(world: AuthWorld) -> None:
    text = world.token("acme", "read", "project.*")
    own = Subjects("hf", read_token(text).id)
    async with by_nkey(world, SERVERS_FILE) as server, logged_in(world, text) as client:

        def answer(message: BusMessage) -> None:
            answers.append(asyncio.ensure_future(server.publish(message.reply, message.payload)))

        answers: list[asyncio.Future[None]] = []
        await server.subscribe("hf.*.srv.s1.>", answer)
        await server.flush()
        assert await client.request(own.server("acme", "s1"), b"hello", 10.0, "acme") == b"hello"
        await asyncio.gather(*answers)
        heard: list[bytes] = []
        await client.subscribe("hf.acme.chg.s.project.*", lambda it: heard.append(it.payload))
        await client.flush()
        await server.publish("hf.acme.chg.s.project.x", b"change")
        await until(lambda: heard == [b"change"], "the change arrives")


async def test_who_has_no_valid_token_is_not_let_in(world: AuthWorld) -> None:
    text = world.token("acme")
    head, payload, signature = text.split(".")
    token = read_token(text)
    await is_refused(world, "", "gave no token|no token")
    await is_refused(world, "sesame", "it is not hft1")
    await is_refused(world, text[:-1], "base64url|did not sign")
    await is_refused(world, text[: len(text) // 2], "it is not hft1")
    resigned = sign_token(token, SigningKey(bytes(32)))
    await is_refused(world, resigned, "did not sign")
    other = world.token("zoo").split(".")[1]
    await is_refused(world, f"{head}.{other}.{signature}", "did not sign")
    await is_refused(world, f"{head}.{payload}.{'A' * len(signature)}", "did not sign")
    expired = world.token("acme", expires_at=int(time.time()) - 1)
    await is_refused(world, expired, "has expired")
    unknown = sign_token(world.new_token("acme", issuer="sso"), world.issuer_key)
    await is_refused(world, unknown, "no issuer 'sso' is registered")
    async with logged_in(world, text) as bus:
        assert bus.connected


async def test_a_revoked_token_lets_nobody_in_any_more(world: AuthWorld) -> None:
    text = world.token("acme")
    async with logged_in(world, text) as before:
        world.registry.revoke(read_token(text), time.time())

        async def refused() -> bool:
            try:
                bus = await log_in(world, text)
            except ConnectionFailedError:
                return True
            await bus.close()
            return False

        # The other instance may have read the registry up to a second before.
        await eventually(refused, "the token is refused", seconds=10.0)
        assert f"token {read_token(text).id} is revoked" in world.log
        # The connection that was there is closed.
        closed = f"auth.closed token={read_token(text).id} reason=its token is revoked"
        await until(lambda: closed in world.log and not before.connected, "it is closed")


async def test_a_token_has_as_many_connections_as_its_limit_allows(world: AuthWorld) -> None:
    limits = TokenLimits(connections=2)
    text, other = (world.token("acme", limits=limits) for _ in range(2))
    async with logged_in(world, text) as first, logged_in(world, text), logged_in(world, other):
        await is_refused(world, text, "has as many connections as it may have: 2")
        await is_refused(world, text, "has as many connections as it may have: 2")
        # One that leaves makes room at once, also for one of the other auth service.
        for _ in range(4):
            await first.close()
            first = await log_in(world, text)
        await is_refused(world, text, "has as many connections as it may have: 2")
        await first.close()


async def test_a_connection_ends_when_its_token_expires(world: AuthWorld) -> None:
    text = world.token("acme", expires_at=int(time.time()) + 3)
    raw = await RawConnection.connect(world.nats.url, lambda it: None, token=text)
    async with asyncio.timeout(_PATIENCE_SECONDS):
        await raw.closed.wait()
    assert any("Authentication Expired" in error for error in raw.errors), raw.errors


async def test_a_token_of_another_issuer_counts_for_its_tenants(world: AuthWorld) -> None:
    key = SigningKey.generate()
    world.registry.add_issuer(Issuer("idp", bytes(key.verify_key), ("acme",)))

    def text(tenant: str, **changes: str) -> str:
        made = new_token(issuer="idp", tenant=tenant, stores=[">"], rights=Right.READ, created_at=0)
        return sign_token(replace(made, **changes), key)  # type: ignore[arg-type]

    good = text("acme")
    async with logged_in(world, good):
        # Servers will find it there.
        assert world.registry.token_text(read_token(good).id) == good
    await is_refused(world, text("zoo"), "may not issue")
    await is_refused(world, text("*"), "may not issue")
    # Another token with the id of one that is in use.
    await is_refused(world, text("acme", id=read_token(good).id, subject="eve"), "another token")


async def test_a_static_configuration_lets_in_whom_it_names(
    world: AuthWorld, tmp_path: Path
) -> None:
    """Without an auth service: the same permissions, and a reload after each change of tokens."""
    revoked, kept, unknown = (world.token("acme") for _ in range(3))
    file, keys = tmp_path / "nats.conf", world.keys.public_keys()

    def write(*texts: str) -> None:
        file.write_text(static_configuration(keys, "hf", texts, "_REPLIES"))

    async def connected(text: str) -> Bus:
        own = OwnToken(lambda: text)
        login = NatsLogin(options=own.nats_options())
        inboxes = own.inboxes(Inboxes("_REPLIES", "acme"))
        return await connect_nats(nats.url, name="test", login=login, inboxes=inboxes)

    write(revoked, kept)
    with running_nats_server(tmp_path, "-c", str(file)) as nats:
        login, inboxes = NatsLogin(nkey=world.keys.path / SERVERS_FILE), Inboxes("_REPLIES")
        servers = await connect_nats(nats.url, name="s", login=login, inboxes=inboxes)
        answers: list[asyncio.Future[None]] = []

        def answer(message: BusMessage) -> None:
            answers.append(
                asyncio.ensure_future(servers.publish(message.reply, message.subject.encode()))
            )

        await servers.subscribe("hf.*.srv.>", answer)
        await servers.flush()
        first, other = await connected(revoked), await connected(kept)
        refused: list[NotAllowedError] = []
        first.on_refused(refused.append)
        own = Subjects("hf", read_token(revoked).id).server("acme", "s1")
        assert await first.request(own, b"", 10.0, "acme") == own.encode()
        stolen = Subjects("hf", read_token(kept).id).server("acme", "s1")
        await first.publish(stolen, b"")
        await first.flush()
        assert [error.subject for error in refused] == [stolen]
        assert len(answers) == 1
        with pytest.raises(LoginFailedError):
            await connected(unknown)
        write(kept)
        os.kill(nats.pid, signal.SIGHUP)
        await until(lambda: not first.connected, "the connection of the revoked token is closed")
        with pytest.raises(LoginFailedError):
            await connected(revoked)
        assert other.connected
        for bus in (first, other, servers):
            await bus.close()


async def test_nobody_reaches_another_tenant_or_another_token(world: AuthWorld) -> None:
    texts = [world.token("acme"), world.token("acme"), world.token("zoo")]
    own, same, other = (read_token(each).id for each in texts)
    forbidden = [
        *(f"_INBOX.acme.{same}.>", f"_INBOX.zoo.{other}.>", "_INBOX.>", "_INBOX.acme.>"),
        *("hf.zoo.chg.s.>", "hf.acme.srv.>", "hf.>", ">", "$SYS.>", "$SYS.REQ.USER.AUTH"),
    ]
    published = [
        *(f"hf.acme.srv.s1.{same}", f"hf.zoo.srv.s1.{own}", "hf.acme.srv.s1", "hf._.hb"),
        *(f"hf.zoo.coord.resolve.{own}", "hf._.coord.drain", "hf._.ops.s1", "hf.acme.chg.s.x"),
        *(f"_INBOX.acme.{same}.1", "$SYS.REQ.USER.AUTH", "$SYS.REQ.SERVER.PING"),
    ]
    async with logged_in(world, texts[0]) as bus:
        refused: list[NotAllowedError] = []
        bus.on_refused(refused.append)
        for subject in forbidden:
            await bus.subscribe(subject, lambda it: None)
        for subject in published:
            await bus.publish(subject, b"x")
        await bus.flush()
        assert [error.subject for error in refused] == [*forbidden, *published]


@pytest.mark.parametrize("holder", TABLE["HOLDERS"])
async def test_every_cell_of_the_table_is_what_nats_does(world: AuthWorld, holder: str) -> None:
    """docs/access.md: who may publish and subscribe what."""
    other = read_token(world.token("acme")).id
    shown = TABLE["token_of"](holder)
    if shown is None:
        own = other
        connecting = by_nkey(world, KEY_FILES[holder])
    else:
        words = ",".join(shown.rights.words)
        text = world.token(shown.tenant, words, *shown.stores)
        own, connecting = read_token(text).id, logged_in(world, text)
    found = {}
    async with connecting as bus:
        refused: list[NotAllowedError] = []
        bus.on_refused(refused.append)
        for deed in TABLE["DEEDS"]:
            refused.clear()
            subject = deed.of(own, other)
            if deed.action == "publish":
                await bus.publish(subject, b"x")
            else:
                await bus.subscribe(subject, lambda it: None)
            await bus.flush()
            assert [error.subject for error in refused] in ([], [subject])
            found[deed.says, deed.subject] = not refused
    assert found == {
        (deed.says, deed.subject): TABLE["may"](holder, deed) for deed in TABLE["DEEDS"]
    }
    assert any(found.values()) and not all(found.values())


@pytest.mark.parametrize("name", [SERVERS_FILE, AUTH_FILE])
async def test_servers_log_in_with_their_nkeys_while_no_auth_service_runs(
    tmp_path: Path, name: str
) -> None:
    with auth_world(tmp_path, services=0) as alone:
        async with by_nkey(alone, name) as bus:
            assert bus.connected
        with pytest.raises(ConnectionFailedError):
            await log_in(alone, alone.token("acme"), seconds=1.0)


async def test_logins_wait_for_an_auth_service_that_is_away(tmp_path: Path) -> None:
    with auth_world(tmp_path) as alone:
        text = alone.token("acme")
        async with logged_in(alone, text) as before:
            alone.services[0].kill()
            waiting = asyncio.create_task(patiently(alone, text))
            # The connection that is there goes on.
            heard: list[bytes] = []
            await before.subscribe("hf.acme.chg.s.>", lambda it: heard.append(it.payload))
            await before.flush()
            async with by_nkey(alone, SERVERS_FILE) as server:
                await server.publish("hf.acme.chg.s.x", b"change")
                await until(lambda: heard == [b"change"], "the change arrives")
            assert not waiting.done()
            await asyncio.to_thread(alone.start_service)
            await (await waiting).close()


async def patiently(world: AuthWorld, text: str) -> Bus:
    """Log in as an application does that tries again."""
    async with asyncio.timeout(60.0):
        while True:
            try:
                return await log_in(world, text)
            except ConnectionFailedError:
                await asyncio.sleep(0.05)


async def test_one_auth_service_is_enough(tmp_path: Path) -> None:
    with auth_world(tmp_path, services=2) as both:
        text = both.token("acme")
        for victim in both.services:
            async with logged_in(both, text):
                victim.signal(signal.SIGTERM)
                assert await asyncio.to_thread(victim.wait) == 0
                if victim is both.services[0]:
                    for _ in range(5):
                        async with logged_in(both, text):
                            pass
        assert "auth.stopped" in both.services[0].log


@pytest.mark.parametrize("part", range(tries(1, 1, 10)))
async def test_guesses_reach_nobody(world: AuthWorld, part: int) -> None:
    """A hostile holder of a token guesses grants and inboxes of others: a million, if thorough."""
    count = tries(10_000, 30_000, 100_000)
    victim, hostile = world.token("acme"), world.token("acme", "read", "mine")
    hits: list[str] = []
    async with by_nkey(world, SERVERS_FILE) as servers, logged_in(world, victim) as honest:
        for subject in ("hf.*.srv.>", "hf.*.coord.>", "hf.*.destroy.>", "hf._.>", "_INBOX.>"):
            await servers.subscribe(subject, lambda it: hits.append(it.subject))
        own_inbox = honest.new_inbox("acme")
        await honest.subscribe(f"{own_inbox}.*", lambda it: hits.append(it.subject))
        await servers.flush()
        await honest.flush()
        raw = await RawConnection.connect(
            world.nats.url, lambda it: hits.append(it.subject.decode()), token=hostile
        )
        try:
            for start in range(0, count, 1000):
                for number in range(start, start + 1000):
                    # As good as guesses get: half of the id is right.
                    grant = read_token(victim).id[:16] + secrets.token_hex(8)
                    if number % 4 == 0:
                        raw.subscribe(f"_INBOX.acme.{grant}.>".encode(), number + 1)
                    else:
                        subject = (
                            f"hf.acme.srv.s1.{grant}",
                            f"hf.acme.coord.resolve.{grant}",
                            f"_INBOX.acme.{grant}.{secrets.token_hex(4)}",
                        )[number % 4 - 1]
                        raw.send(publication(subject.encode(), b"guess"))
                await raw.drain()
                await raw.round_trip()
            # What answers the victim does not reach the guesser.
            await servers.publish(f"{own_inbox}.1", b"secret")
            await until(lambda: f"{own_inbox}.1" in hits, "the answer arrives")
            await raw.round_trip()
        finally:
            raw.close()
    # The answer itself is heard by its owner, and by the servers, who hear all inboxes.
    # The auth service tells what it counts meanwhile.
    others = [subject for subject in hits if subject != Subjects("hf").cluster("report")]
    assert others == [f"{own_inbox}.1"] * 2
    assert sum(raw.errors.values()) == count, raw.errors

"""Who may do what: a real nats-server with the permissions of tokens, and servers that check them.

NATS stops what a token's holder may not publish; the servers check each request all the same, so
requests of a user that NATS lets publish everything are refused too.
"""

from __future__ import annotations

import asyncio
import runpy
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from nacl.signing import SigningKey

from holdfast.client import Client, NotAllowedError, connect
from holdfast.coordinator.service import Coordinator
from holdfast.coordinator.storage import Storage
from holdfast.persist.access.shown_tokens import knows_holders
from holdfast.persist.options import ServerOptions
from holdfast.persist.service import PersistServer
from holdfast.protocol import frames
from holdfast.protocol.access.nats_permissions import (
    NatsPermissions,
    permissions_of,
    servers_permissions,
)
from holdfast.protocol.access.rights import (
    ALL_RIGHTS,
    RIGHT_OF_WORD,
    Right,
    rights_needed,
)
from holdfast.protocol.access.tokens import Token, sign_token
from holdfast.protocol.bus.bus import BusTimeoutError
from holdfast.protocol.bus.bus_nats import NatsBus, connect_nats
from holdfast.protocol.direct.caller_bus import CallerBus
from holdfast.protocol.direct.door_bus import DoorBus
from holdfast.protocol.direct.messages import Hello, decode_welcome, encode_hello
from holdfast.protocol.direct.place import SocketDoor, dial
from holdfast.protocol.errors import HoldfastError, error_from_wire
from holdfast.protocol.limits import REVOCATIONS_FRESH_SECONDS
from holdfast.protocol.subjects import CLUSTER_TENANT, Inboxes, Subjects
from holdfast.shared_fs.access.registry import AccessRegistry
from holdfast.shared_fs.access.token_source import find_tokens
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import open_layout
from tests.support.documents import ROOT
from tests.support.in_loop import entered
from tests.support.nats_server import NatsServer, running_nats_server
from tests.support.tokens import ISSUER_KEY, a_token, make_registry, register
from tests.support.waiting import until

#: One token with each right, and others.
OF_RIGHT = {word: a_token(right) for word, right in RIGHT_OF_WORD.items()}
ADA, RENEWED = (a_token(subject="ada", created_at=number) for number in (1, 2))
BOB = a_token(subject="bob")
NARROW = a_token(stores=["mine.*"])
UMBRELLA = a_token(tenant="umbrella")
OPERATOR = a_token(tenant="*")
#: What docs/generate/access_table.py knows of the tables in docs/access.md, and the tokens of its
#: second one.
TABLE = runpy.run_path(str(ROOT / "docs" / "generate" / "access_table.py"))
ASKERS = {
    asker: a_token(shown.rights, shown.stores)
    for asker in TABLE["ASKERS"]
    if (shown := TABLE["asker_token"](asker)) is not None
}
TOKENS = [*OF_RIGHT.values(), ADA, BOB, NARROW, UMBRELLA, OPERATOR]
_DEADLINE_SECONDS = 30.0


def _user(name: str, *permissions: NatsPermissions) -> str:
    publish = [each for one in permissions for each in one.publish]
    subscribe = [each for one in permissions for each in one.subscribe]
    allowed = f"{{publish: {publish}, subscribe: {subscribe}}}".replace("'", '"')
    return f'{{user: "{name}", password: "x", permissions: {allowed}}}'


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    directory = tmp_path_factory.mktemp("access")
    users = [_user("servers", servers_permissions("hf"))]
    users += [_user(each.id, permissions_of(each, "hf")) for each in TOKENS]
    users += [_user("ada", permissions_of(ADA, "hf"), permissions_of(RENEWED, "hf"))]
    configuration = directory / "nats.conf"
    configuration.write_text("authorization {users = [\n" + "\n".join(users) + "\n]}\n")
    with running_nats_server(directory, "-c", str(configuration)) as server:
        yield server


def _url(nats: NatsServer, user: str) -> str:
    return nats.url.replace("//", f"//{user}:x@")


class World:
    """A cluster in this loop that asks for tokens."""

    def __init__(self, nats: NatsServer, registry: AccessRegistry, direct: Path) -> None:
        self.nats = nats
        self.direct = direct
        self.registry = registry
        registered = (*TOKENS, RENEWED, *ASKERS.values())
        self.texts = {each.id: register(registry, each) for each in registered}

    def connect(self, token: Token, user: str = "", **options: Any) -> Any:
        return connect(_url(self.nats, user or token.id), token=self.texts[token.id], **options)

    @asynccontextmanager
    async def bus(self, user: str, token: Token, tenant: str = "acme") -> AsyncIterator[NatsBus]:
        inboxes = Inboxes(tenant=tenant, own=token.id)
        bus = await connect_nats(_url(self.nats, user), name="test", inboxes=inboxes)
        try:
            yield bus
        finally:
            await bus.close()


@pytest.fixture
def world(runner: asyncio.Runner, nats: NatsServer, tmp_path: Path) -> Iterator[World]:
    with entered(runner, _running(nats, tmp_path)) as found:
        yield found


class _DiskOfBoth(Disk):
    """The coordinator's disk, in the process of the server: it would not see the server's lock, and
    take the process for ended while the server connects later than itself."""

    def is_locked(self, path: Path) -> bool:
        return True


@asynccontextmanager
async def _running(nats: NatsServer, tmp_path: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        layout = open_layout(tmp_path / "data", Disk())
        registry = make_registry(layout.root)
        tokens = find_tokens(layout.root, None)
        assert tokens is not None
        buses = [
            await connect_nats(_url(nats, "servers"), name=name) for name in ("coordinator", "s1")
        ]
        for bus in buses:
            stack.push_async_callback(bus.close)
        coordinator = Coordinator(buses[0], Storage(layout, _DiskOfBoth(), tokens=tokens))
        # It takes frames directly too, of those who want that.
        door = SocketDoor(tmp_path / "direct", "s1", lambda: buses[1].max_payload_bytes + 8)
        knows = knows_holders(tokens, Subjects(), asyncio.to_thread)
        bus_of_server = DoorBus(buses[1], Subjects(), "s1", door, knows)
        stack.push_async_callback(bus_of_server.close)
        server = PersistServer(bus_of_server, layout, Disk(), "s1", ServerOptions(tokens=tokens))
        ready = asyncio.Event(), asyncio.Event()
        coordinating = asyncio.create_task(coordinator.run(ready[0]))
        serving = asyncio.create_task(server.run(ready[1]))
        async with asyncio.timeout(_DEADLINE_SECONDS):
            for each in ready:
                await each.wait()
        yield World(nats, registry, tmp_path / "direct")
        server.stop()
        await serving
        coordinator.stop()
        await coordinating


async def test_past_nats_a_token_has_to_be_shown_and_allows_what_it_allows_over_nats(
    world: World,
) -> None:
    reader = OF_RIGHT["read"]
    async with (
        world.connect(ADA, direct=world.direct) as ada,
        world.connect(reader, direct=world.direct) as narrow,
        world.connect(OPERATOR, tenant="acme", direct=world.direct) as operator,
    ):
        await ada.stream("project.x").append(b"x")
        await narrow.stream("project.x").head()
        await operator.stream("project.x").head()
        for client in (ada, narrow, operator):
            bus = client._link.bus
            assert isinstance(bus, CallerBus)
            await until(lambda bus=bus: bool(bus.direct_subjects))
        await ada.stream("project.x").append(b"y")
        assert (await narrow.stream("project.x").head()).count == 2
        with pytest.raises(NotAllowedError):
            await narrow.stream("project.x").append(b"z")
        # What is revoked ends here as there.
        world.registry.revoke(ADA, time.time())
        with pytest.raises(NotAllowedError):
            async with asyncio.timeout(_DEADLINE_SECONDS):
                while True:
                    await ada.stream("project.x").append(b"z")
                    await asyncio.sleep(0.1)


@pytest.mark.parametrize("shown", ["nothing", "another token", "a forged one", "its own"])
async def test_whoever_does_not_hold_the_token_that_it_names_is_left_to_nats(
    world: World, shown: str
) -> None:
    text = {
        "nothing": "",
        "another token": world.texts[BOB.id],
        "a forged one": sign_token(ADA, SigningKey(bytes(32))),
        "its own": world.texts[ADA.id],
    }[shown]
    pipe = dial(world.direct, "s1", 1 << 20)
    assert pipe is not None
    said: asyncio.Queue[bytes] = asyncio.Queue()
    pipe.start(said.put_nowait, lambda: None)
    subject = Subjects(grant=ADA.id).server("acme", "s1")
    pipe.send(encode_hello(Hello(subject, f"_INBOX.acme.{ADA.id}.x", text)))
    refusal = decode_welcome(await asyncio.wait_for(said.get(), _DEADLINE_SECONDS))
    assert bool(refusal) == (shown != "its own"), refusal
    pipe.close()


async def _answer(bus: NatsBus, subject: str, payload: bytes, tenant: str = "acme") -> Any:
    """Return the error code of the answer to a frame of one group, or None."""
    while True:
        reply = await bus.request(subject, payload, _DEADLINE_SECONDS, tenant)
        [element] = frames.decode(reply)
        if element[1] == 0:
            return None
        error = error_from_wire(element[2], element[3])
        if not error.retryable:
            return error
        await asyncio.sleep(0.01)


def _frame(operation: list[Any], name: str, counter: int) -> bytes:
    counter = counter if operation[0] < frames.FIRST_READ else 0
    return frames.encode_request(b"w", [[1, name, counter, counter, 0, [operation]]])


async def test_every_cell_of_the_table_is_what_servers_do(world: World) -> None:
    """docs/access.md: who may ask what, past a NATS that lets everything through."""
    async with world.connect(OPERATOR, tenant="acme") as operator:
        await operator.stream("project.x").append(b"x")
    for asker in TABLE["ASKERS"]:
        token = ASKERS.get(asker)
        subjects = Subjects(grant=token.id if token is not None else "")
        own = Inboxes(tenant="acme", own=subjects.grant)
        bus = await connect_nats(_url(world.nats, "servers"), name="test", inboxes=own)
        try:
            for counter, ask in enumerate(TABLE["ASKS"], 1):
                error = await _refusal(bus, subjects, ask, counter)
                allowed = TABLE["may_ask"](asker, ask)
                assert isinstance(error, NotAllowedError) != allowed, (asker, ask, error)
                if ask.operation and asker in OF_RIGHT and not allowed:
                    lacking = rights_needed([[ask.operation]]) & ~OF_RIGHT[asker].rights
                    assert error.missing == ", ".join(lacking.words)
                    assert error.subject == "stream project.x"
        finally:
            await bus.close()


async def _refusal(bus: NatsBus, subjects: Subjects, ask: Any, counter: int) -> Any:
    """Return the error of the answer to what is asked, or None."""
    if ask.operation:
        frame = _frame([ask.operation], "project.x", counter)
        return await _answer(bus, subjects.server("acme", "s1"), frame)
    subject = subjects.coordinator("acme", ask.verb)
    if ask.verb == "destroy":
        subject = subjects.destroy("acme", "s1")
    question = frames.encode_control(**ask.body)
    try:
        reply = frames.decode_control(await bus.request(subject, question, 10.0, "acme"))
    except HoldfastError as error:
        return error
    if ask.verb == "resolve" and reply["owners"][0][0] is None:
        return error_from_wire(*reply["owners"][0][1:])
    return None


@pytest.mark.parametrize("word", sorted(OF_RIGHT))
async def test_the_api_tells_what_a_token_lacks(world: World, word: str) -> None:
    async with world.connect(OPERATOR, tenant="acme") as operator:
        await operator.stream("notes").append(b"x")
    async with world.connect(OF_RIGHT[word], timeout_seconds=_DEADLINE_SECONDS) as client:
        assert client.tenant == "acme"
        outcomes = {
            "read": await _outcome(client.stream("notes").get(1)),
            "write": await _outcome(client.stream("notes").append(b"y")),
            "configure": await _outcome(client.stream("notes").configure(max_messages=100)),
            "list": await _outcome(_listed(client)),
            "destroy": await _outcome(client.stream("notes").destroy()),
        }
        for action, missing in outcomes.items():
            if action == "destroy":
                # It reads the head of the store first.
                assert missing == ("read" if word != "read" else "NATS"), (word, action)
            else:
                assert missing == ("" if action == word else action), (word, action)
        # NATS refuses to let those listen who may not read; the server, to list.
        followed = await _outcome(_followed(client))
        assert (followed == "") is False
        assert await client.servers()


async def _outcome(asked: Any) -> str:
    """Return what the token lacks, `NATS` if that refuses, or nothing."""
    try:
        async with asyncio.timeout(_DEADLINE_SECONDS):
            await asked
    except NotAllowedError as error:
        return str(error.fields.get("missing", "NATS"))
    return ""


async def _listed(client: Client) -> list[str]:
    return [info.name async for info in client.stores()]


async def _followed(client: Client) -> None:
    async with client.subscribe("*", start_seq=1) as changes:
        await anext(changes)


async def test_another_tenant_and_anothers_grant_are_refused_by_nats(world: World) -> None:
    frame = _frame([frames.HEAD], "notes", 0)
    async with world.bus(UMBRELLA.id, UMBRELLA, "umbrella") as bus:
        for subject in (
            Subjects(grant=UMBRELLA.id).server("acme", "s1"),
            Subjects(grant=ADA.id).server("acme", "s1"),
            Subjects(grant=ADA.id).coordinator("acme", "resolve"),
            Subjects().server("acme", "s1"),
            Subjects(grant=ADA.id).server("umbrella", "s1"),
            Subjects(grant=UMBRELLA.id).destroy("acme", "s1"),
            "hf._.coord.drain",
            "hf._.own.s1.acme",
        ):
            with pytest.raises(NotAllowedError):
                await bus.request(subject, frame, _DEADLINE_SECONDS, "umbrella")


async def test_servers_refuse_what_nats_lets_through(world: World) -> None:
    """The user of the servers may publish everything, as in a NATS without permissions."""
    frame = _frame([frames.HEAD], "notes", 0)
    question = frames.encode_control(stores=[[1, "notes"]])
    expected = {
        "": "this cluster asks for a token",
        UMBRELLA.id: "the token is for another tenant",
        "x" * 32: "no such token is registered",
    }
    for grant, reason in expected.items():
        subjects = Subjects(grant=grant)
        own = Inboxes(tenant="acme", own=grant)
        bus = await connect_nats(_url(world.nats, "servers"), name="test", inboxes=own)
        try:
            error = await _answer(bus, subjects.server("acme", "s1"), frame)
            assert isinstance(error, NotAllowedError)
            assert (error.missing, error.reason) == ("a token", reason)
            for subject in (
                subjects.coordinator("acme", "resolve"),
                subjects.coordinator("acme", "servers"),
                subjects.destroy("acme", "s1"),
            ):
                reply = await bus.request(subject, question, _DEADLINE_SECONDS, "acme")
                with pytest.raises(NotAllowedError) as refused:
                    frames.decode_control(reply)
                assert refused.value.reason == reason
        finally:
            await bus.close()


@pytest.mark.parametrize("place", ["coord.drain", "coord.register", "coord.release", "srv.s1"])
async def test_an_operator_does_not_pass_for_a_server(world: World, place: str) -> None:
    """NATS's wildcard for all tenants also matches the cluster's own subjects."""
    ordered = frames.encode_control(server="s1", incarnation="none", stores=None)
    payload = _frame([frames.HEAD], "notes", 0) if place == "srv.s1" else ordered
    async with world.bus(OPERATOR.id, OPERATOR, CLUSTER_TENANT) as bus:
        subject = f"hf._.{place}.{OPERATOR.id}"
        reply = await bus.request(subject, payload, _DEADLINE_SECONDS, CLUSTER_TENANT)
    assert b"the token is for another tenant" in reply


async def test_an_operators_token_commands_the_cluster(world: World) -> None:
    """Through NATS; that this cluster has one server and no bucket is for the servers to say."""
    async with world.connect(OPERATOR, tenant="acme") as operator:
        await operator.stream("notes").append(b"x")

    async def asked(subject: str, **fields: Any) -> Any:
        payload = frames.encode_control(**fields)
        return frames.decode_control(
            await bus.request(subject, payload, _DEADLINE_SECONDS, CLUSTER_TENANT)
        )

    store = {"store": ["acme", 1, "notes"]}
    async with world.bus(OPERATOR.id, OPERATOR, CLUSTER_TENANT) as bus:
        with pytest.raises(HoldfastError, match="takes stores"):
            await asked("hf._.coord.drain", server="s1")
        await asked("hf._.coord.undrain", server="s1")
        for verb in ("versions", "backup", "restore"):
            with pytest.raises(HoldfastError, match="was started without one"):
                await asked("hf._.ops.s1", job=verb, verb=verb, revision=1, **store)
        for verb, place in (("purge", {"seq": 1}), ("sweep", {"epoch": 1}), ("delete", {})):
            async with asyncio.timeout(_DEADLINE_SECONDS):
                job = {"job": f"do {verb}", "verb": verb, **store, **place}
                while not (done := await asked("hf._.ops.s1", **job))["done"]:
                    await asyncio.sleep(0.01)
            if verb == "sweep":
                assert not [row for row in done["remains"] if row["holds_values"]]
    async with world.connect(OPERATOR, tenant="acme") as operator:
        assert await _listed(operator) == []


async def test_a_reply_goes_to_no_inbox_but_the_holders(world: World) -> None:
    frame = _frame([frames.HEAD], "notes", 0)
    subject = Subjects(grant=ADA.id).server("acme", "s1")
    for own in ("", NARROW.id, f"{ADA.id}x"):
        inboxes = Inboxes(tenant="acme", own=own)
        bus = await connect_nats(_url(world.nats, "servers"), name="test", inboxes=inboxes)
        try:
            with pytest.raises(BusTimeoutError):
                await bus.request(subject, frame, 0.3, "acme")
        finally:
            await bus.close()


async def test_a_store_without_a_right_is_neither_listed_nor_created(world: World) -> None:
    async with world.connect(OPERATOR, tenant="acme") as operator:
        await operator.stream("mine.notes").append(b"x")
        await operator.kv("others.notes").set("a", b"x")
        async with world.connect(NARROW) as client:
            assert await _listed(client) == ["mine.notes"]
            with pytest.raises(NotAllowedError) as refused:
                await client.stream("not.there").append(b"x")
            assert refused.value.missing == "any right on it"
        assert await _listed(operator) == ["mine.notes", "others.notes"]


async def test_a_tenant_that_contradicts_the_token_is_refused_at_once(world: World) -> None:
    with pytest.raises(HoldfastError, match="contradicts the token"):
        world.connect(ADA, tenant="umbrella")


async def test_a_revoked_token_ends_within_seconds_amid_writes_and_a_subscription(
    world: World,
) -> None:
    loop = asyncio.get_running_loop()
    acked: list[tuple[float, bytes]] = []
    async with world.connect(BOB, timeout_seconds=_DEADLINE_SECONDS) as client:
        notes = client.stream("notes")

        async def write() -> None:
            number = 0
            while True:
                value = b"%d" % number
                began_at = loop.time()
                await notes.append(value)
                acked.append((began_at, value))
                number += 1

        async with notes.subscribe(start_seq=1) as changes:
            writing = asyncio.create_task(write())
            for _ in range(10):
                await anext(changes)
            await asyncio.to_thread(world.registry.revoke, BOB, 0.0)
            revoked_at = loop.time()
            with pytest.raises(NotAllowedError) as refused:
                async with asyncio.timeout(_DEADLINE_SECONDS):
                    await writing
            assert refused.value.missing == "a token"
            assert all(at <= revoked_at + REVOCATIONS_FRESH_SECONDS for at, _ in acked)
            # What it follows live is NATS's to end; what it lacks, the server does not tell.
            with pytest.raises(NotAllowedError):
                async with notes.subscribe(start_seq=1) as late:
                    await anext(late)
    async with world.connect(OPERATOR, tenant="acme") as operator:
        stored = [message.value async for message in operator.stream("notes").get_all()]
    assert stored == [value for _, value in acked]


async def test_a_renewed_token_goes_on_with_what_is_unanswered(world: World) -> None:
    texts = [world.texts[ADA.id], world.texts[RENEWED.id]]
    given: list[str] = []

    def renew() -> str:
        text = texts[min(len(given), 1)]
        given.append(text)
        return text

    url = _url(world.nats, "ada")
    async with connect(url, token=renew, timeout_seconds=_DEADLINE_SECONDS) as client:
        notes = client.stream("notes")
        await notes.append(b"first")
        writes = [asyncio.create_task(notes.append(b"%d" % number)) for number in range(50)]
        await asyncio.sleep(0)
        await asyncio.to_thread(world.nats.restart)
        await asyncio.gather(*writes)
        await asyncio.to_thread(world.registry.revoke, ADA, 0.0)
        await notes.append(b"last")
        assert client._link.subjects.grant == RENEWED.id
    async with world.connect(OPERATOR, tenant="acme") as operator:
        stored = [message.value async for message in operator.stream("notes").get_all()]
    assert stored == [b"first", *(b"%d" % number for number in range(50)), b"last"]


def test_the_tokens_of_this_page_are_those_of_the_code() -> None:
    assert {token.rights for token in OF_RIGHT.values()} == set(Right)
    assert OPERATOR.rights == ALL_RIGHTS
    assert sign_token(ADA, ISSUER_KEY) != sign_token(RENEWED, ISSUER_KEY)

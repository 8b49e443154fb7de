"""The attacks: what a hostile tenant sends, drawn from a seed. Pure.

An attack makes a volley: bytes for a connection that has exactly a tenant's permissions. Some are
refused by nats-server for those permissions, some by a server of ours, some are carried out, and
none may be felt by another tenant.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from holdfast.protocol import frames
from holdfast.protocol.limits import MAX_FRAME_OPERATIONS, MIN_PAYLOAD_BYTES
from tests.hostile import mutation, templates
from tests.hostile.templates import FORGED_VERBS, KVS, LARGE_STREAM, STREAMS, VERBS, World, numbered
from tests.support.raw_nats import publication

STREAM: Final = 1
KV: Final = 2
_VERSION: Final = b"\x01"
#: As many as a frame takes, less for what a frame without mutations shall be.
_FULL: Final = MAX_FRAME_OPERATIONS
#: Whitespace to Python and to no NATS server, and other bytes that parsers trip over.
_ODD_BYTES: Final = (
    b"\x0b",
    b"\x0c",
    b"\x1c",
    b"\x1d",
    b"\x1e",
    b"\x1f",
    b"\x85",
    b"\xa0",
    b"\x00",
    b"\xff\xfe",
    b"\xc3\x28",
    b"\xed\xa0\x80",
    b"\xe2\x80\xa8",
    b"\x7f",
    b"\x1b[2J",
)
#: Never asked for by anybody: what arrives there was sent by a server for a stranger.
CANARY: Final = "canary"


class Volley(NamedTuple):
    """What one attack sends, and how many operations that is: a message is at least one."""

    data: bytes
    operations: int
    #: Sent on a connection of its own, which is then dropped.
    apart: bool = False
    #: That connection reads nothing of what it asked for.
    deaf: bool = False


Attack = Callable[[random.Random, World, bytes], Volley]
"""From the draws, the world and an inbox of the attacker's."""

_ATTACKS: dict[str, tuple[Attack, float]] = {}


def attacks() -> dict[str, tuple[Attack, float]]:
    """Return every attack with its weight, by its name."""
    return dict(_ATTACKS)


def _weighing(weight: float) -> Callable[[Attack], Attack]:
    def add(attack: Attack) -> Attack:
        _ATTACKS[attack.__name__] = (attack, weight)
        return attack

    return add


def _server_subject(world: World, server: str) -> bytes:
    return f"hf.{world.tenant}.srv.{server}".encode()


def _coordinator_subject(world: World, verb: str) -> bytes:
    return f"hf.{world.tenant}.coord.{verb}".encode()


def _reply(inbox: bytes, rng: random.Random) -> bytes:
    return b"%s.%d" % (inbox, rng.randrange(1 << 30))


def _writer(rng: random.Random) -> bytes:
    """One of few, each of which numbers its groups as it should."""
    return b"hostile-%d" % rng.randrange(8)


def _request(
    rng: random.Random, world: World, inbox: bytes, groups: list[Any], writer: bytes = b""
) -> bytes:
    """Return a valid frame to the owner of its first store."""
    writer = writer or _writer(rng)
    server = world.owner(groups[0][0], groups[0][1], rng)
    payload = frames.encode_request(writer, numbered(groups, writer, world))
    return publication(_server_subject(world, server), payload, _reply(inbox, rng))


def _of_one_store(
    rng: random.Random, world: World, inbox: bytes, kind: int, name: str, operations: list[Any]
) -> bytes:
    counter = 0 if operations[0][0] >= frames.FIRST_READ else 1
    return _request(rng, world, inbox, [[kind, name, counter, counter, 0, operations]])


def _stream(rng: random.Random) -> str:
    return rng.choice(STREAMS)


# What is not as it should be


@_weighing(3)
def valid_operations(rng: random.Random, world: World, inbox: bytes) -> Volley:
    """Every operation as it should be: what the mutated ones act upon."""
    groups = [templates.group(rng, world) for _ in range(30)]
    return Volley(
        b"".join(_request(rng, world, inbox, [group]) for group in groups),
        sum(len(group[5]) for group in groups),
    )


@_weighing(12)
def mutated_operations(rng: random.Random, world: World, inbox: bytes) -> Volley:
    """Frames that are right but for what is in an operation."""
    sent, count = [], 0
    for _ in range(60):
        group = templates.group(rng, world)
        writer = _writer(rng)
        numbered([group], writer, world)
        group[5] = [
            [one[0], *_as_list(mutation.mutate(one[1:], rng))] if rng.random() < 0.8 else one
            for one in group[5]
        ]
        server = world.owner(group[0], group[1], rng)
        payload = _VERSION + mutation.pack([writer, [group]])
        if len(payload) < MIN_PAYLOAD_BYTES:
            sent.append(publication(_server_subject(world, server), payload, _reply(inbox, rng)))
            count += len(group[5])
    return Volley(b"".join(sent), count)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


@_weighing(8)
def mutated_frames(rng: random.Random, world: World, inbox: bytes) -> Volley:
    """Frames with anything changed anywhere."""
    sent, count = [], 0
    for _ in range(50):
        groups = [templates.group(rng, world) for _ in range(rng.choice((1, 1, 5)))]
        writer = _writer(rng)
        payload = _VERSION + mutation.pack(
            mutation.mutate([writer, numbered(groups, writer, world)], rng)
        )
        if rng.random() < 0.3:
            payload = mutation.damage(payload, rng)
        if len(payload) < MIN_PAYLOAD_BYTES:
            server = world.owner(groups[0][0], groups[0][1], rng)
            sent.append(publication(_server_subject(world, server), payload, _reply(inbox, rng)))
            count += sum(len(group[5]) for group in groups)
    return Volley(b"".join(sent), count)


@_weighing(8)
def mutated_control(rng: random.Random, world: World, inbox: bytes) -> Volley:
    """A client's questions to the coordinator, and servers' and operators' as a tenant's,
    changed."""
    sent = []
    for _ in range(60):
        verbs = VERBS if rng.random() < 0.7 else FORGED_VERBS
        verb = rng.choice(list(verbs))
        body = mutation.mutate(verbs[verb](rng, world), rng)
        payload = _VERSION + mutation.pack(body)
        if rng.random() < 0.2:
            payload = mutation.damage(payload, rng)
        if len(payload) < MIN_PAYLOAD_BYTES:
            sent.append(publication(_coordinator_subject(world, verb), payload, _reply(inbox, rng)))
    return Volley(b"".join(sent), len(sent))


@_weighing(3)
def forged_control(rng: random.Random, world: World, inbox: bytes) -> Volley:
    """What servers and operators ask, with everything right but the tenant."""
    sent = []
    for verb, make in FORGED_VERBS.items():
        payload = frames.encode_control(**make(rng, world))
        for subject in (_coordinator_subject(world, verb), f"hf._.coord.{verb}".encode()):
            sent.append(publication(subject, payload, _reply(inbox, rng)))
    beat = frames.encode_control(**templates.heartbeat(rng, world))
    for subject in (b"hf._.hb", _coordinator_subject(world, "hb")):
        sent.append(publication(subject, beat))
    for command in ("probe", "register", "drain"):
        server = rng.choice(world.servers)
        order = frames.encode_control(
            command=command, term=2**40, incarnation=world.incarnations.get(server, "none")
        )
        for subject in (f"hf._.ctl.{server}".encode(), _server_subject(world, server)):
            sent.append(publication(subject, order, _reply(inbox, rng)))
    return Volley(b"".join(sent), len(sent))


@_weighing(2)
def forbidden_subjects(rng: random.Random, world: World, inbox: bytes) -> Volley:
    """What nats-server refuses: other tenants, the cluster, other inboxes; to publish and to
    hear."""
    subjects = [
        f"hf.{world.victim}.srv.s1",
        f"hf.{world.victim}.coord.resolve",
        f"hf.{world.victim}.chg.s.torture.s0",
        f"hf.{world.tenant}.chg.s.s0",
        f"_INBOX.{world.victim}.{CANARY}",
        "hf._.hb",
        "hf._.ops.s1",
        "$SYS.REQ.SERVER.PING",
        "$JS.API.INFO",
        "hf",
        ">",
        "*.*.*.*",
    ]
    sent = [
        publication(subject.encode(), rng.randbytes(20), _reply(inbox, rng)) for subject in subjects
    ]
    listened = [
        ">",
        "hf.>",
        "hf.*.chg.>",
        f"hf.{world.victim}.chg.>",
        "_INBOX.>",
        "hf._.>",
        "$SYS.>",
    ]
    listened += [f"_INBOX.{world.victim}.>", f"hf.{world.tenant}.srv.*", "hf.*.srv.s1 queue"]
    sent += [b"SUB %s %d\r\n" % (each.encode(), 9000 + n) for n, each in enumerate(listened)]
    return Volley(b"".join(sent), len(sent))


@_weighing(5)
def odd_subjects(rng: random.Random, world: World, inbox: bytes) -> Volley:
    """Subjects of any bytes, within what the permissions match, with a message worth forging."""
    sent = []
    for _ in range(60):
        place = rng.choice(("coord", "coord", "srv"))
        start = f"hf.{world.tenant}.{place}.".encode()
        odd = rng.choice(_ODD_BYTES)
        # nats-py's regular expression takes what follows for the number of a subscription.
        tail = rng.choice((b"", b"x", b"resolve", b"s1", b"hb"))
        tail += odd * rng.choice((1, 1, 3))
        tail += rng.choice((b"", b"%d" % rng.randrange(40), b"%d" % rng.randrange(40) + odd + b"x"))
        if rng.random() < 0.2:
            tail += bytes(rng.choice(range(33, 256)) for _ in range(rng.choice((1, 10, 300))))
        if rng.random() < 0.1:
            tail = rng.choice((b"*", b">", b"", b".", b"..", b"a.b.c", b"x" * 3_000))
        payload = rng.choice(
            (
                frames.encode_control(**templates.heartbeat(rng, world)),
                frames.encode_request(b"w", []),
                frames.encode_control(**VERBS["resolve"](rng, world)),
                b"",
                rng.randbytes(30),
            )
        )
        reply = _reply(inbox, rng) if rng.random() < 0.7 else b""
        sent.append(publication(start + tail, payload, reply))
    return Volley(b"".join(sent), len(sent))


@_weighing(5)
def odd_replies(rng: random.Random, world: World, inbox: bytes) -> Volley:
    """Valid requests whose reply subject has any bytes in it."""
    sent = []
    for _ in range(60):
        odd = rng.choice(_ODD_BYTES)
        tail = (
            rng.choice((b"", b"x", b"5"))
            + odd
            + rng.choice((b"", b"%d" % rng.randrange(2_000), b"y"))
        )
        reply = (
            rng.choice((inbox + b".", b"_INBOX.", b"", b"_INBOX.%s." % world.tenant.encode()))
            + tail
        )
        if rng.random() < 0.2:
            reply = inbox + rng.choice((b".*", b".>", b"", b".", b"..a", b"." + b"x" * 3_500))
        sent.append(_some_request(rng, world, reply))
    return Volley(b"".join(sent), len(sent))


@_weighing(4)
def foreign_replies(rng: random.Random, world: World, inbox: bytes) -> Volley:
    """Valid requests whose reply would go to others: tenants, servers, the coordinator."""
    victim = world.victim
    targets = [
        f"_INBOX.{victim}.{CANARY}.{rng.randrange(1_000)}",
        f"_INBOX.{CANARY}.{rng.randrange(1_000)}",
        f"_INBOX._.{CANARY}",
        f"_INBOX.{world.tenant}.>",
        "_INBOX.>",
        f"hf.{victim}.chg.s.torture.s0",
        f"hf.{victim}.chg.k.torture.k0",
        f"hf.{victim}.srv.s1",
        f"hf.{victim}.coord.resolve",
        f"hf.{world.tenant}.srv.s1",
        f"hf.{world.tenant}.coord.suspect",
        "hf._.hb",
        "hf._.ctl.s1",
        "hf._.coord.release",
        "hf._.ops.s1",
        "$SYS.REQ.SERVER.PING",
        "HF._.hb",
        CANARY,
    ]
    sent = [_some_request(rng, world, target.encode()) for target in targets for _ in range(3)]
    return Volley(b"".join(sent), len(sent))


def _some_request(rng: random.Random, world: World, reply: bytes) -> bytes:
    kind = rng.randrange(4)
    if kind == 0:
        payload = frames.encode_control(**VERBS["resolve"](rng, world))
        return publication(_coordinator_subject(world, "resolve"), payload, reply)
    if kind == 1:
        verb = rng.choice(("servers", "stores", "nosuch"))
        payload = frames.encode_control(limit=10, prefix="", kind=None, after=None)
        return publication(_coordinator_subject(world, verb), payload, reply)
    server = rng.choice(world.servers)
    groups = [templates.group(rng, world, 1)] if kind == 2 else []
    writer = _writer(rng)
    payload = frames.encode_request(writer, numbered(groups, writer, world))
    return publication(_server_subject(world, server), payload, reply)


@_weighing(4)
def odd_headers(rng: random.Random, world: World, inbox: bytes) -> Volley:
    """Messages with headers, which nobody here uses: right, wrong, and those of a status."""
    sent = []
    for _ in range(40):
        headers = rng.choice(
            (
                b"NATS/1.0\r\n\r\n",
                b"NATS/1.0 503\r\n\r\n",
                b"NATS/1.0 503 No Responders\r\n\r\n",
                b"NATS/1.0 404\r\nX: y\r\n\r\n",
                b"NATS/1.0\r\nX: " + b"y" * 5_000 + b"\r\n\r\n",
                b"NATS/1.0\r\n" + b"X: y\r\n" * 1_000 + b"\r\n",
                b"NATS/1.0\r\n"
                + rng.choice(_ODD_BYTES)
                + b": "
                + rng.choice(_ODD_BYTES)
                + b"\r\n\r\n",
                b"NATS/1.0\r\n: \r\n\r\n",
                b"NATS/1.0\r\nno colon\r\n\r\n",
                b"HTTP/1.1 200 OK\r\n\r\n",
                b"NATS/1.0",
                b"\r\n\r\n",
                rng.randbytes(40),
                b"",
            )
        )
        subject = rng.choice(
            (
                _coordinator_subject(world, rng.choice(list(VERBS))),
                _server_subject(world, rng.choice(world.servers)),
            )
        )
        payload = rng.choice((b"", frames.encode_request(b"w", []), frames.encode_control()))
        reply = rng.choice((b"", _reply(inbox, rng)))
        sent.append(publication(subject, payload, reply, headers))
    return Volley(b"".join(sent), len(sent))


@_weighing(3)
def garbage(rng: random.Random, world: World, inbox: bytes) -> Volley:
    """Payloads that are no frames."""
    sent = []
    for _ in range(60):
        payload = rng.choice(
            (
                b"",
                b"\x00",
                b"\x01",
                b"\x02\xc0",
                b"\xff" * 20,
                b"{}",
                _VERSION + mutation.nested(rng)[: MIN_PAYLOAD_BYTES // 4],
                _VERSION + mutation.pack([b"w", mutation.extreme(rng)]),
                _VERSION + mutation.pack(mutation.extreme(rng)),
                rng.randbytes(rng.choice((1, 10, 1_000))),
                _VERSION + rng.randbytes(rng.choice((1, 10, 1_000))),
            )
        )
        subject = rng.choice(
            (
                _coordinator_subject(world, rng.choice((*VERBS, *FORGED_VERBS, "nosuch", "a.b"))),
                _server_subject(world, rng.choice((*world.servers, "nosuch", "*", "s1.x"))),
            )
        )
        sent.append(publication(subject, payload, _reply(inbox, rng)))
    return Volley(b"".join(sent), len(sent))


@_weighing(1)
def broken_connection(rng: random.Random, world: World, inbox: bytes) -> Volley:
    """What is no NATS at all, or stops in the middle, on a connection of its own."""
    start = _some_request(rng, world, _reply(inbox, rng))
    end = rng.choice(
        (
            b"NOSUCH command\r\n",
            b"PUB hf.%s.srv.s1 100\r\nshort" % world.tenant.encode(),
            b"PUB hf.%s.srv.s1 -1\r\n\r\n" % world.tenant.encode(),
            b"PUB hf.%s.srv.s1 99999999999\r\n" % world.tenant.encode(),
            b"PUB " + b"x" * 10_000 + b" 0\r\n\r\n",
            b"HPUB hf.%s.srv.s1 12 3\r\nabc\r\n" % world.tenant.encode(),
            b"CONNECT {}\r\n",
            b"UNSUB 12345\r\nUNSUB 1 -1\r\n",
            b"".join(b"SUB hf.%s.chg.> %d\r\n" % (world.tenant.encode(), n) for n in range(2, 40)),
            b"".join(b"SUB %s.%d %d\r\nUNSUB %d\r\n" % (inbox, n, n, n) for n in range(2, 2_000)),
            rng.randbytes(2_000),
            b"",
        )
    )
    return Volley(start + end, 1, apart=True)


@_weighing(0.5)
def deaf_reader(rng: random.Random, world: World, inbox: bytes) -> Volley:
    """Asks for much and reads nothing of it."""
    page = [frames.GET_MESSAGES, 1, None, None, 4_096, None]
    sent = [_of_one_store(rng, world, inbox, STREAM, LARGE_STREAM, [page]) for _ in range(200)]
    return Volley(b"".join(sent), len(sent), apart=True, deaf=True)


@_weighing(2)
def destroyed_stores(rng: random.Random, world: World, inbox: bytes) -> Volley:
    """Own stores destroyed under way, others' asked for, and all of it mutated."""
    sent = []
    for _ in range(20):
        kind, name = rng.choice(world.stores or [(STREAM, "s0")])
        body: Any = {
            "job": f"j{rng.randrange(50)}",
            "store": rng.choice(
                ([kind, name], [kind, name], [STREAM, _stream(rng)], [1, "torture.s0"])
            ),
            "epoch": rng.choice((1, 1, 2, 3, 2**40)),
        }
        if rng.random() < 0.5:
            body = mutation.mutate(body, rng)
        payload = _VERSION + mutation.pack(body)
        if len(payload) < MIN_PAYLOAD_BYTES:
            subject = f"hf.{world.tenant}.destroy.{rng.choice(world.servers)}".encode()
            sent.append(publication(subject, payload, _reply(inbox, rng)))
    return Volley(b"".join(sent), max(1, len(sent)))


# Floods


@_weighing(2)
def flood_of_pings(rng: random.Random, world: World, inbox: bytes) -> Volley:
    count = rng.choice((500, 5_000))
    ping = frames.encode_request(b"w", [])
    server = _server_subject(world, rng.choice(world.servers))
    return Volley(
        b"".join(publication(server, ping, b"%s.%d" % (inbox, n)) for n in range(count)), count
    )


@_weighing(2)
def flood_of_names(rng: random.Random, world: World, inbox: bytes) -> Volley:
    """Names that were never written, asked for."""
    count = rng.choice((1_000, 4_000, 10_000))
    kind = rng.choice((STREAM, KV))
    stores = [[kind, f"r{rng.getrandbits(48):x}"] for _ in range(count)]
    payload = frames.encode_control(stores=stores)
    subject = _coordinator_subject(world, "resolve")
    return Volley(publication(subject, payload, _reply(inbox, rng)), count)


@_weighing(1)
def flood_of_questions(rng: random.Random, world: World, inbox: bytes) -> Volley:
    """The coordinator's verbs, many at once."""
    verb = rng.choice(list(VERBS))
    sent = [
        publication(
            _coordinator_subject(world, verb),
            frames.encode_control(**VERBS[verb](rng, world)),
            _reply(inbox, rng),
        )
        for _ in range(300)
    ]
    return Volley(b"".join(sent), len(sent))


@_weighing(1)
def flood_of_suspicions(rng: random.Random, world: World, inbox: bytes) -> Volley:
    """Each server that lives is said to be dead."""
    sent = []
    for _ in range(100):
        server = rng.choice(world.servers)
        payload = frames.encode_control(
            server=server, incarnation=world.incarnations.get(server, "none")
        )
        sent.append(
            publication(_coordinator_subject(world, "suspect"), payload, _reply(inbox, rng))
        )
    return Volley(b"".join(sent), len(sent))


@_weighing(14)
def flood_of_appends(rng: random.Random, world: World, inbox: bytes) -> Volley:
    """Frames that are as full as they may be."""
    frame_count = rng.choice((1, 4, 8))
    sent = []
    for _ in range(frame_count):
        name = _stream(rng)
        operations: list[Any] = [[frames.APPEND, b"%08d" % n] for n in range(_FULL)]
        sent.append(_of_one_store(rng, world, inbox, STREAM, name, operations))
    return Volley(b"".join(sent), frame_count * _FULL)


@_weighing(3)
def flood_of_entries(rng: random.Random, world: World, inbox: bytes) -> Volley:
    operations: list[Any] = [
        [frames.SET_ENTRY, f"key-{rng.randrange(500)}", b"%d" % n] for n in range(_FULL)
    ]
    name = rng.choice(KVS)
    return Volley(_of_one_store(rng, world, inbox, KV, name, operations), _FULL)


@_weighing(2)
def flood_of_batches(rng: random.Random, world: World, inbox: bytes) -> Volley:
    """Batches as large as they may be, some of which cannot be carried out at their end."""
    members: list[Any] = [[frames.APPEND, b"%d" % n] for n in range(_FULL - 1)]
    last = rng.choice(
        ([frames.APPEND, b"x"], [frames.EXPECT, None, 0], [frames.SET_MESSAGE, 2**62, b""])
    )
    batch = [frames.BATCH, [*members, last]]
    return Volley(_of_one_store(rng, world, inbox, STREAM, _stream(rng), [batch]), _FULL)


@_weighing(6)
def flood_of_reads(rng: random.Random, world: World, inbox: bytes) -> Volley:
    """Reads of as much as can be asked for, as often as a frame takes."""
    kind, name, read = rng.choice(
        (
            (STREAM, LARGE_STREAM, [frames.GET_MESSAGES, None, None, None, None, 10**12]),
            (STREAM, LARGE_STREAM, [frames.GET_MESSAGES, 1, None, None, None, 10**12]),
            (STREAM, LARGE_STREAM, [frames.GET_MESSAGES, 1, None, 2**50, 1, None]),
            (STREAM, LARGE_STREAM, [frames.GET_MESSAGES, 1, None, 1, 1, None]),
            (STREAM, LARGE_STREAM, [frames.GET_MESSAGES, 1, None, None, 4_096, None]),
            (STREAM, LARGE_STREAM, [frames.CHANGES, 0, 0, 4_096, None]),
            (STREAM, LARGE_STREAM, [frames.GET_SEQS, list(range(1, 60_000, 30))]),
            (STREAM, LARGE_STREAM, [frames.HEAD]),
            (STREAM, _stream(rng), [frames.GET_MESSAGE, rng.randint(1, 10_000)]),
            (STREAM, _stream(rng), [frames.CONSUMERS, None]),
            (KV, rng.choice(KVS), [frames.GET_ENTRIES, "", None, 4_096, True]),
            (KV, rng.choice(KVS), [frames.GET_ENTRIES, "key-", "key-4", 1, False]),
            (KV, rng.choice(KVS), [frames.GET_ENTRY, "key-1"]),
        )
    )
    count = min(_FULL, 800_000 // len(frames.pack(read)))
    return Volley(_of_one_store(rng, world, inbox, kind, name, [read] * count), count)


@_weighing(2)
def flood_of_uploads(rng: random.Random, world: World, inbox: bytes) -> Volley:
    """Uploads that nobody will finish, and chunks at offsets that cannot be."""
    name = _stream(rng)
    data = rng.randbytes(rng.choice((1, 1_000, 60_000)))
    operations: list[Any] = [[frames.PUT_CHUNK, rng.randbytes(16), 0, data] for _ in range(10)]
    operations += [
        [frames.PUT_CHUNK, rng.randbytes(16), rng.choice(mutation.INTEGERS), b"x"]
        for _ in range(60)
    ]
    rng.shuffle(operations)
    return Volley(_of_one_store(rng, world, inbox, STREAM, name, operations), len(operations))


@_weighing(3)
def flood_of_writers(rng: random.Random, world: World, inbox: bytes) -> Volley:
    """A writer of its own for each write, in one store or several: each has an outcome to keep."""
    sent = []
    for _ in range(200):
        writer = rng.randbytes(rng.choice((1, 12, 32)))
        groups = [[STREAM, _stream(rng), 1, 1, 0, [[frames.APPEND, b"w"]]]]
        sent.append(_request(rng, world, inbox, groups, writer))
    return Volley(b"".join(sent), len(sent))


@_weighing(3)
def standing_floors(rng: random.Random, world: World, inbox: bytes) -> Volley:
    """A writer that never says what it has heard: all of its outcomes are to be kept."""
    writer = b"standing-%d" % rng.randrange(4)
    name = _stream(rng)
    server = world.owner(STREAM, name, rng)
    sent, count = [], 0
    for _ in range(20):
        groups = []
        for _ in range(100):
            counter = world.next_counter(writer, STREAM, name)
            # Not a run, so the outcome holds every result.
            operations: list[Any] = [
                [frames.DELETE_MESSAGES, []] for _ in range(rng.choice((1, 10)))
            ]
            groups.append([STREAM, name, counter, 1, 0, operations])
            count += len(operations)
        payload = frames.encode_request(writer, groups)
        sent.append(publication(_server_subject(world, server), payload, _reply(inbox, rng)))
    return Volley(b"".join(sent), count)


@_weighing(2)
def odd_counters(rng: random.Random, world: World, inbox: bytes) -> Volley:
    """Counters that jump, go back, and end."""
    sent = []
    for _ in range(100):
        counter = rng.choice((1, 2, 3, 10**6, 2**62, 2**63 - 1, rng.randrange(1, 1_000)))
        first_unacked = rng.choice((0, 1, counter, counter, counter - 1, rng.randint(0, counter)))
        groups = [[STREAM, _stream(rng), counter, first_unacked, 0, [[frames.APPEND, b"c"]]]]
        payload = frames.encode_request(b"odd-%d" % rng.randrange(3), groups)
        server = _server_subject(world, world.owner(STREAM, groups[0][1], rng))
        sent.append(publication(server, payload, _reply(inbox, rng)))
    return Volley(b"".join(sent), len(sent))


@_weighing(3)
def flood_of_msg_ids(rng: random.Random, world: World, inbox: bytes) -> Volley:
    """Ids that are to be remembered for as long as one may ask."""
    name = _stream(rng)
    window: list[Any] = [frames.CONFIGURE, {"dedupe_window_seconds": 86_400.0}]
    operations = [window] + [
        [frames.APPEND, b"", None, rng.randbytes(8).hex() * rng.choice((1, 1, 16))]
        for _ in range(1_000)
    ]
    return Volley(_of_one_store(rng, world, inbox, STREAM, name, operations), len(operations))


@_weighing(3)
def flood_of_consumers(rng: random.Random, world: World, inbox: bytes) -> Volley:
    """Consumers, as many as there may be, that fetch all there is and acknowledge at random."""
    name = rng.choice((*STREAMS, LARGE_STREAM))
    operations: list[Any] = [
        [
            frames.CONSUMER_CONFIGURE,
            f"c{n}",
            {"max_ack_pending": 10_000, "ack_wait_seconds": rng.choice((0.001, 0.1, 30.0))},
            1,
        ]
        for n in range(70)
    ]
    ids = [rng.randint(1, 200) for _ in range(100)]
    operations += [[frames.CONSUMER_FETCH, id, 4_096] for id in ids]
    operations += [
        [
            frames.CONSUMER_ACK,
            id,
            [[rng.randrange(4), n, 1, rng.choice((0, 1, 10**9))] for n in range(1, 500)],
        ]
        for id in rng.sample(ids, 10)
    ]
    operations += [[frames.CONSUMER_DELETE, f"c{n}"] for n in range(0, 70, 5)]
    return Volley(_of_one_store(rng, world, inbox, STREAM, name, operations), len(operations))


@_weighing(2)
def flood_of_stores(rng: random.Random, world: World, inbox: bytes) -> Volley:
    """Stores that are made for one message."""
    groups = []
    for _ in range(50):
        name = f"n{rng.randrange(100_000)}"
        world.stores.append((STREAM, name))
        groups.append([STREAM, name, 1, 1, 0, [[frames.APPEND, b"x"]]])
    del world.stores[:-1_000]
    payload = frames.encode_control(stores=[group[:2] for group in groups])
    sent = [publication(_coordinator_subject(world, "resolve"), payload, _reply(inbox, rng))]
    writer = _writer(rng)
    payload = frames.encode_request(writer, numbered(groups, writer, world))
    sent += [
        publication(_server_subject(world, server), payload, _reply(inbox, rng))
        for server in world.servers
    ]
    return Volley(b"".join(sent), 3 * len(groups))


@_weighing(2)
def flood_of_deletes(rng: random.Random, world: World, inbox: bytes) -> Volley:
    """Deletes that name much, and trims again and again."""
    seqs = list(range(1, 4_097))
    operations: list[Any] = rng.choice(
        (
            [[frames.DELETE_MESSAGES, seqs] for _ in range(20)],
            [[frames.TRIM, n] for n in range(1, 2_000)],
            [[frames.APPEND, b"t"], [frames.TRIM, None]] * 1_000,
            [[frames.DELETE_MESSAGES, [n]] for n in range(1, 4_000)],
        )
    )
    return Volley(
        _of_one_store(rng, world, inbox, STREAM, _stream(rng), operations), len(operations)
    )


@_weighing(1)
def flood_of_settings(rng: random.Random, world: World, inbox: bytes) -> Volley:
    """Limits that change all the time, with what they evict."""
    operations: list[Any] = []
    for n in range(300):
        operations.append([frames.CONFIGURE, {"description": f"{n}", "max_messages": 10 + n % 3}])
        operations.append([frames.APPEND, b"e"])
    operations.append([frames.CONFIGURE, dict.fromkeys(("max_messages", "description"))])
    return Volley(
        _of_one_store(rng, world, inbox, STREAM, _stream(rng), operations), len(operations)
    )


@_weighing(1)
def flood_of_large_values(rng: random.Random, world: World, inbox: bytes) -> Volley:
    """Frames that are as long as NATS takes."""
    sent = []
    for _ in range(8):
        operations: list[Any] = [[frames.APPEND, rng.randbytes(999_000)]]
        sent.append(_of_one_store(rng, world, inbox, STREAM, _stream(rng), operations))
    return Volley(b"".join(sent), len(sent))


@_weighing(2)
def replays(rng: random.Random, world: World, inbox: bytes) -> Volley:
    """The same frame again and again."""
    frame = _request(rng, world, inbox, [templates.group(rng, world, 20)])
    count = rng.choice((10, 300))
    return Volley(frame * count, count * 20)


@_weighing(1)
def other_owners(rng: random.Random, world: World, inbox: bytes) -> Volley:
    """One frame for the stores of everybody, sent to each server."""
    groups = [
        [STREAM, name, 0, 0, 0, [[frames.HEAD]]]
        for name in [*STREAMS, *(f"u{rng.randrange(10_000)}" for _ in range(200))]
    ]
    payload = frames.encode_request(b"w", groups)
    sent = [
        publication(_server_subject(world, server), payload, _reply(inbox, rng))
        for server in (*world.servers, "nosuch")
    ]
    return Volley(b"".join(sent), len(sent) * len(groups))


def filling(rng: random.Random, world: World, inbox: bytes, message_count: int) -> Volley:
    """Return what makes the large stream large."""
    operations: list[Any] = [[frames.APPEND, b"%08d" % n] for n in range(2_000)]
    sent = [
        _of_one_store(rng, world, inbox, STREAM, LARGE_STREAM, operations)
        for _ in range(message_count // len(operations))
    ]
    return Volley(b"".join(sent), len(sent) * len(operations))

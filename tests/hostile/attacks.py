"""The attacks: what a hostile tenant sends, drawn from a seed. Pure.

An attack makes a volley: bytes for a connection that has exactly a tenant's permissions. Some are
refused by nats-server for those permissions, some by a server of ours, some are carried out, and
none may be felt by another tenant. Here are those that are not as they should be; what is valid,
and too much, is in `floods.py`.
"""

from __future__ import annotations

from typing import Any, Final

from holdfast.protocol import frames
from holdfast.protocol.limits import MIN_PAYLOAD_BYTES
from tests.hostile import mutation, templates
from tests.hostile.floods import FLOODS
from tests.hostile.templates import FORGED_VERBS, LARGE_STREAM, VERBS, numbered
from tests.hostile.volley import STREAM, Aim, Attacks, weighing

_VERSION: Final = b"\x01"
#: Whitespace to Python and to no NATS server, and other bytes that parsers trip over.
_ODD_BYTES: Final = (
    *(b"\x0b", b"\x0c", b"\x1c", b"\x1d", b"\x1e", b"\x1f", b"\x85", b"\xa0", b"\x00"),
    *(b"\xff\xfe", b"\xc3\x28", b"\xed\xa0\x80", b"\xe2\x80\xa8", b"\x7f", b"\x1b[2J"),
)
#: Never asked for by anybody: what arrives there was sent by a server for a stranger.
CANARY: Final = "canary"

_WRONG: Final[Attacks] = {}


def attacks() -> Attacks:
    """Return every attack with its weight, by its name."""
    return _WRONG | FLOODS


@weighing(_WRONG, 3)
def valid_operations(aim: Aim) -> None:
    """Every operation as it should be: what the mutated ones act upon."""
    for group in [templates.group(aim.rng, aim.world) for _ in range(30)]:
        aim.request([group], operation_count=len(group[5]))


@weighing(_WRONG, 12)
def mutated_operations(aim: Aim) -> None:
    """Frames that are right but for what is in an operation."""
    rng = aim.rng
    for _ in range(60):
        group = templates.group(rng, aim.world)
        writer = aim.writer()
        numbered([group], writer, aim.world)
        group[5] = [
            [one[0], *_as_list(mutation.mutate(one[1:], rng))] if rng.random() < 0.8 else one
            for one in group[5]
        ]
        server = aim.server(aim.world.owner(group[0], group[1], rng))
        payload = _VERSION + mutation.pack([writer, [group]])
        if len(payload) < MIN_PAYLOAD_BYTES:
            aim.send(server, payload, len(group[5]))


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


@weighing(_WRONG, 8)
def mutated_frames(aim: Aim) -> None:
    """Frames with anything changed anywhere."""
    rng, world = aim.rng, aim.world
    for _ in range(50):
        groups = [templates.group(rng, world) for _ in range(rng.choice((1, 1, 5)))]
        writer = aim.writer()
        wrong = mutation.mutate([writer, numbered(groups, writer, world)], rng)
        payload = _VERSION + mutation.pack(wrong)
        if rng.random() < 0.3:
            payload = mutation.damage(payload, rng)
        if len(payload) < MIN_PAYLOAD_BYTES:
            server = aim.server(world.owner(groups[0][0], groups[0][1], rng))
            aim.send(server, payload, sum(len(group[5]) for group in groups))


@weighing(_WRONG, 8)
def mutated_control(aim: Aim) -> None:
    """A client's questions to the coordinator, and servers' and operators' as a tenant's,
    changed."""
    rng = aim.rng
    for _ in range(60):
        verbs = VERBS if rng.random() < 0.7 else FORGED_VERBS
        verb = rng.choice(list(verbs))
        body = mutation.mutate(verbs[verb](rng, aim.world), rng)
        payload = _VERSION + mutation.pack(body)
        if rng.random() < 0.2:
            payload = mutation.damage(payload, rng)
        if len(payload) < MIN_PAYLOAD_BYTES:
            aim.send(aim.coordinator(verb), payload)


@weighing(_WRONG, 3)
def forged_control(aim: Aim) -> None:
    """What servers and operators ask, with everything right but the tenant."""
    rng, world = aim.rng, aim.world
    for verb, make in FORGED_VERBS.items():
        payload = frames.encode_control(**make(rng, world))
        for subject in (aim.coordinator(verb), f"hf._.coord.{verb}".encode()):
            aim.send(subject, payload)
    beat = frames.encode_control(**templates.heartbeat(rng, world))
    for subject in (b"hf._.hb", aim.coordinator("hb")):
        aim.send(subject, beat, reply=b"")
    for command in ("probe", "register", "drain"):
        server = rng.choice(world.servers)
        order = frames.encode_control(
            command=command, term=2**40, incarnation=world.incarnations.get(server, "none")
        )
        for subject in (f"hf._.ctl.{server}".encode(), aim.server(server)):
            aim.send(subject, order)


@weighing(_WRONG, 2)
def forbidden_subjects(aim: Aim) -> None:
    """What nats-server refuses: other tenants, the cluster, other inboxes; to publish and to
    hear."""
    victim, tenant = aim.world.victim, aim.world.tenant
    subjects = [
        f"hf.{victim}.srv.s1",
        f"hf.{victim}.coord.resolve",
        f"hf.{victim}.chg.s.torture.s0",
        f"hf.{tenant}.chg.s.s0",
        f"_INBOX.{victim}.{CANARY}",
        *("hf._.hb", "hf._.ops.s1", "$SYS.REQ.SERVER.PING", "$JS.API.INFO", "hf", ">", "*.*.*.*"),
    ]
    for subject in subjects:
        aim.send(subject.encode(), aim.rng.randbytes(20))
    listened = [
        *(">", "hf.>", "hf.*.chg.>", f"hf.{victim}.chg.>", "_INBOX.>", "hf._.>", "$SYS.>"),
        *(f"_INBOX.{victim}.>", f"hf.{tenant}.srv.*", "hf.*.srv.s1 queue"),
    ]
    for number, subject in enumerate(listened, start=9000):
        aim.raw(b"SUB %s %d\r\n" % (subject.encode(), number))


@weighing(_WRONG, 5)
def odd_subjects(aim: Aim) -> None:
    """Subjects of any bytes, within what the permissions match, with a message worth forging."""
    rng, world = aim.rng, aim.world
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
        if world.grant and rng.random() < 0.8:
            tail += b"." + world.grant.encode()
        aim.send(start + tail, payload, reply=aim.reply() if rng.random() < 0.7 else b"")


@weighing(_WRONG, 5)
def odd_replies(aim: Aim) -> None:
    """Valid requests whose reply subject has any bytes in it."""
    rng, inbox = aim.rng, aim.inbox
    for _ in range(60):
        odd = rng.choice(_ODD_BYTES)
        tail = rng.choice((b"", b"x", b"5")) + odd
        tail += rng.choice((b"", b"%d" % rng.randrange(2_000), b"y"))
        own = aim.world.inbox + b"."
        reply = rng.choice((inbox + b".", b"_INBOX.", b"", own)) + tail
        if rng.random() < 0.2:
            reply = inbox + rng.choice((b".*", b".>", b"", b".", b"..a", b"." + b"x" * 3_500))
        _send_some_request(aim, reply)


@weighing(_WRONG, 4)
def foreign_replies(aim: Aim) -> None:
    """Valid requests whose reply would go to others: tenants, servers, the coordinator."""
    victim, tenant, rng = aim.world.victim, aim.world.tenant, aim.rng
    targets = [
        f"_INBOX.{victim}.{CANARY}.{rng.randrange(1_000)}",
        f"_INBOX.{CANARY}.{rng.randrange(1_000)}",
        *(f"_INBOX._.{CANARY}", f"_INBOX.{tenant}.>", "_INBOX.>"),
        *(f"hf.{victim}.chg.s.torture.s0", f"hf.{victim}.chg.k.torture.k0"),
        *(f"hf.{victim}.srv.s1", f"hf.{victim}.coord.resolve"),
        *(f"hf.{tenant}.srv.s1", f"hf.{tenant}.coord.suspect"),
        *("hf._.hb", "hf._.ctl.s1", "hf._.coord.release", "hf._.ops.s1"),
        *("$SYS.REQ.SERVER.PING", "HF._.hb", CANARY),
    ]
    for target in targets:
        for _ in range(3):
            _send_some_request(aim, target.encode())


def _send_some_request(aim: Aim, reply: bytes) -> None:
    rng, world = aim.rng, aim.world
    kind = rng.randrange(4)
    if kind == 0:
        aim.ask("resolve", reply, **VERBS["resolve"](rng, world))
    elif kind == 1:
        verb = rng.choice(("servers", "stores", "nosuch"))
        aim.ask(verb, reply, limit=10, prefix="", kind=None, after=None)
    else:
        server = aim.server()
        groups = [templates.group(rng, world, 1)] if kind == 2 else []
        writer = aim.writer()
        payload = frames.encode_request(writer, numbered(groups, writer, world))
        aim.send(server, payload, reply=reply)


@weighing(_WRONG, 4)
def odd_headers(aim: Aim) -> None:
    """Messages with headers, which nobody here uses: right, wrong, and those of a status."""
    rng = aim.rng
    for _ in range(40):
        headers = rng.choice(
            (
                b"NATS/1.0\r\n\r\n",
                b"NATS/1.0 503\r\n\r\n",
                b"NATS/1.0 503 No Responders\r\n\r\n",
                b"NATS/1.0 404\r\nX: y\r\n\r\n",
                b"NATS/1.0\r\nX: " + b"y" * 5_000 + b"\r\n\r\n",
                b"NATS/1.0\r\n" + b"X: y\r\n" * 1_000 + b"\r\n",
                b"NATS/1.0\r\n%s: %s\r\n\r\n" % (rng.choice(_ODD_BYTES), rng.choice(_ODD_BYTES)),
                b"NATS/1.0\r\n: \r\n\r\n",
                b"NATS/1.0\r\nno colon\r\n\r\n",
                b"HTTP/1.1 200 OK\r\n\r\n",
                b"NATS/1.0",
                b"\r\n\r\n",
                rng.randbytes(40),
                b"",
            )
        )
        subject = rng.choice((aim.coordinator(rng.choice(list(VERBS))), aim.server()))
        payload = rng.choice((b"", frames.encode_request(b"w", []), frames.encode_control()))
        aim.send(subject, payload, reply=rng.choice((b"", aim.reply())), headers=headers)


@weighing(_WRONG, 3)
def garbage(aim: Aim) -> None:
    """Payloads that are no frames."""
    rng = aim.rng
    for _ in range(60):
        payload = rng.choice(
            (
                *(b"", b"\x00", b"\x01", b"\x02\xc0", b"\xff" * 20, b"{}"),
                _VERSION + mutation.nested(rng)[: MIN_PAYLOAD_BYTES // 4],
                _VERSION + mutation.pack([b"w", mutation.extreme(rng)]),
                _VERSION + mutation.pack(mutation.extreme(rng)),
                rng.randbytes(rng.choice((1, 10, 1_000))),
                _VERSION + rng.randbytes(rng.choice((1, 10, 1_000))),
            )
        )
        verb = rng.choice((*VERBS, *FORGED_VERBS, "nosuch", "a.b"))
        server = rng.choice((*aim.world.servers, "nosuch", "*", "s1.x"))
        aim.send(rng.choice((aim.coordinator(verb), aim.server(server))), payload)


@weighing(_WRONG, 1, apart=True)
def broken_connection(aim: Aim) -> None:
    """What is no NATS at all, or stops in the middle, on a connection of its own."""
    _send_some_request(aim, aim.reply())
    tenant, inbox = aim.world.tenant.encode(), aim.inbox
    end = aim.rng.choice(
        (
            b"NOSUCH command\r\n",
            b"PUB hf.%s.srv.s1 100\r\nshort" % tenant,
            b"PUB hf.%s.srv.s1 -1\r\n\r\n" % tenant,
            b"PUB hf.%s.srv.s1 99999999999\r\n" % tenant,
            b"PUB " + b"x" * 10_000 + b" 0\r\n\r\n",
            b"HPUB hf.%s.srv.s1 12 3\r\nabc\r\n" % tenant,
            b"CONNECT {}\r\n",
            b"UNSUB 12345\r\nUNSUB 1 -1\r\n",
            b"".join(b"SUB hf.%s.chg.> %d\r\n" % (tenant, n) for n in range(2, 40)),
            b"".join(b"SUB %s.%d %d\r\nUNSUB %d\r\n" % (inbox, n, n, n) for n in range(2, 2_000)),
            aim.rng.randbytes(2_000),
            b"",
        )
    )
    aim.raw(end, 0)


@weighing(_WRONG, 0.5, apart=True, deaf=True)
def deaf_reader(aim: Aim) -> None:
    """Asks for much and reads nothing of it."""
    for _ in range(200):
        page = [frames.GET_MESSAGES, 1, None, None, 4_096, None]
        aim.operate(STREAM, LARGE_STREAM, [page])


@weighing(_WRONG, 2)
def destroyed_stores(aim: Aim) -> None:
    """Own stores destroyed under way, others' asked for, and all of it mutated."""
    rng, world = aim.rng, aim.world
    for _ in range(20):
        kind, name = rng.choice(world.stores or [(STREAM, "s0")])
        job = f"j{rng.randrange(50)}"
        stores = ([kind, name], [kind, name], [STREAM, aim.stream()], [1, "torture.s0"])
        store, epoch = rng.choice(stores), rng.choice((1, 1, 2, 3, 2**40))
        body: Any = {"job": job, "store": store, "epoch": epoch}
        if rng.random() < 0.5:
            body = mutation.mutate(body, rng)
        payload = _VERSION + mutation.pack(body)
        if len(payload) < MIN_PAYLOAD_BYTES:
            server = rng.choice(world.servers)
            aim.send(world.granted(f"hf.{world.tenant}.destroy.{server}"), payload)

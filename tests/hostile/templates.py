"""Valid operations and control messages of every kind, to be sent as they are or mutated.

They are made by our own encoders. `test_templates.py` sees to it that every operation of
`protocol/frames.py` and every verb of the coordinator has one.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from holdfast.protocol import frames
from holdfast.protocol.control import ServerPhase
from holdfast.protocol.names import StoreKind
from holdfast.protocol.subjects import inboxes_of

STREAMS: Final = tuple(f"s{number}" for number in range(6))
KVS: Final = tuple(f"k{number}" for number in range(3))
#: Has many messages from the beginning, for reads and trims that are long.
LARGE_STREAM: Final = "large"
_MSG_ID_COUNT: Final = 10_000
_KEY_COUNT: Final = 500


@dataclass(slots=True)
class World:
    """What the attacker knows of the cluster, and of itself."""

    tenant: str
    #: A tenant that it has no business with.
    victim: str
    servers: list[str] = field(default_factory=lambda: ["s1", "s2"])
    incarnations: dict[str, str] = field(default_factory=dict)
    #: The server of each store, by kind and name.
    owners: dict[tuple[int, str], str] = field(default_factory=dict)
    counters: dict[tuple[bytes, int, str], int] = field(default_factory=dict)
    uploads: list[bytes] = field(default_factory=list)
    #: Names of stores that were made in passing.
    stores: list[tuple[int, str]] = field(default_factory=list)
    #: The id of its token, if the cluster asks for one.
    grant: str = ""

    @property
    def inbox(self) -> bytes:
        """The start of its own inboxes; a dot and more follow."""
        return inboxes_of(self.tenant, self.grant).encode()

    def granted(self, subject: str) -> bytes:
        """Return the subject of a request as one of its own."""
        return (f"{subject}.{self.grant}" if self.grant else subject).encode()

    def next_counter(self, writer: bytes, kind: int, name: str) -> int:
        key = (writer, kind, name)
        self.counters[key] = counter = self.counters.get(key, 0) + 1
        return counter

    def owner(self, kind: int, name: str, rng: random.Random) -> str:
        """Return the server to ask, now and then the wrong one."""
        if rng.random() < 0.03:
            return rng.choice((*self.servers, "nosuch"))
        return self.owners.get((kind, name)) or rng.choice(self.servers)


Operation = list[Any]
_Make = Callable[[random.Random, World], Operation]


def _value(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((0, 1, 8, 8, 8, 40, 300)))


def _headers(rng: random.Random) -> Any:
    blocks = (b"NATS/1.0\r\nuser: eve\r\n\r\n", b"NATS/1.0\r\n")
    maps = ({}, {"user": "eve"}, {"hf-encoding": "zstd"}, {"live": "a.1"})
    return rng.choice((None, None, *maps, *blocks))


def _seq(rng: random.Random) -> int:
    return rng.choice((1, 2, rng.randint(1, 100), rng.randint(1, 20_000)))


def _key(rng: random.Random) -> str:
    return f"key-{rng.randrange(_KEY_COUNT)}"


def _ttl(rng: random.Random) -> Any:
    return rng.choice((None, None, None, 0.001, 1, 86_400.0, 3e9))


def _upload(rng: random.Random, world: World) -> bytes:
    if world.uploads and rng.random() < 0.7:
        return rng.choice(world.uploads[-50:])
    upload = rng.randbytes(16)
    world.uploads.append(upload)
    del world.uploads[:-1_000]
    return upload


def _large_value(rng: random.Random, world: World) -> list[Any]:
    size_bytes = rng.choice((1, 100, 300_000, 2**36, 2**36 + 1))
    digest = sha256(b"x" * 100).digest()
    return [_upload(rng, world), size_bytes, digest, zlib.crc32(b"x" * 100)]


def _append(rng: random.Random, world: World) -> Operation:
    value = _large_value(rng, world) if rng.random() < 0.03 else _value(rng)
    msg_id = f"id-{rng.randrange(_MSG_ID_COUNT)}" if rng.random() < 0.2 else None
    expected = _seq(rng) if rng.random() < 0.05 else None
    append = [frames.APPEND, value, _headers(rng), msg_id, expected, _ttl(rng)]
    if rng.random() < 0.5:
        append += [rng.choice((None, _subject(rng))), rng.choice((None, None, 1)), _options(rng)]
    return append


def _subject(rng: random.Random) -> str:
    return rng.choice((f"a.{rng.randrange(20)}", f"a.{rng.randrange(20)}", "b", "a.*"))


def _filter(rng: random.Random) -> str:
    return rng.choice((">", "a.*", "a.>", "*.1", "b", _subject(rng)))


def _filters(rng: random.Random) -> list[str]:
    return [_filter(rng) for _ in range(rng.choice((0, 1, 1, 3, 100)))]


def _options(rng: random.Random) -> dict[str, Any] | None:
    pool: dict[str, Any] = {
        "expected_last_subject_seq": rng.choice((0, _seq(rng))),
        "expected_subject": _filter(rng),
        "expected_last_msg_id": f"id-{rng.randrange(_MSG_ID_COUNT)}",
        "rollup": rng.choice(("sub", "sub", "all")),
        "never_expires": True,
        "incr": rng.choice(("+1", "-5", "9" * 100)),
    }
    names = rng.sample(list(pool), rng.choice((0, 1, 1, 2)))
    return rng.choice((None, {name: pool[name] for name in names}))


def _cursor(rng: random.Random) -> str:
    return f"cursor{rng.randrange(20)}"


def _set_entry(rng: random.Random, world: World) -> Operation:
    value = _large_value(rng, world) if rng.random() < 0.03 else _value(rng)
    expected = _seq(rng) if rng.random() < 0.1 else None
    return [frames.SET_ENTRY, _key(rng), value, _headers(rng), expected, _ttl(rng)]


def _batch(rng: random.Random, world: World) -> Operation:
    members = []
    for _ in range(rng.choice((1, 3, 40))):
        make = rng.choice((_append, _append, _set_entry, _expect, None))
        number = rng.choice((frames.DELETE_MESSAGES, *_OF_GATEWAYS))
        members.append(OPERATIONS[number](rng, world) if make is None else make(rng, world))
    return [frames.BATCH, members]


def _expect(rng: random.Random, world: World) -> Operation:
    return [frames.EXPECT, rng.choice((None, _seq(rng), _key(rng))), _seq(rng)]


def _settings(rng: random.Random) -> dict[str, Any]:
    """Some limits of a store, that leave room to go on with."""
    pool: dict[str, Any] = {
        "max_messages": rng.choice((None, 100, 50_000)),
        "max_bytes": rng.choice((None, 100_000, 10_000_000)),
        "max_age_seconds": rng.choice((None, 0.001, 1.0, 1e9)),
        "max_message_bytes": rng.choice((None, 1_000)),
        "max_messages_per_second": rng.choice((None, 1e6, 1e300)),
        "max_bytes_per_second": rng.choice((None, 1e9, 1e300)),
        "discard": rng.choice((None, "old", "new")),
        "durability": rng.choice((None, "applied", "synced")),
        "dedupe_window_seconds": rng.choice((None, 0.001, 86_400.0)),
        "max_messages_per_subject": rng.choice((None, 1, 100)),
        "discard_new_per_subject": rng.choice((None, True)),
        "subject_marker_seconds": rng.choice((None, 1.0, 1e9)),
        "first_seq": rng.choice((None, 1, 100, 2**62)),
        "deny_delete": rng.choice((None, False, True)),
        "deny_purge": rng.choice((None, False, True)),
        "sealed": rng.choice((None, None, None, False, True)),
        "serving_epoch": rng.choice((None, 1, 2)),
        "description": rng.choice((None, "x" * 512)),
    }
    return {name: pool[name] for name in rng.sample(list(pool), rng.choice((1, 1, 3)))}


def _consumer(rng: random.Random) -> dict[str, Any]:
    pool: dict[str, Any] = {
        "ack_wait_seconds": rng.choice((None, 0.001, 30.0, 2_592_000.0)),
        "max_deliveries": rng.choice((None, 1, 5)),
        "max_ack_pending": rng.choice((None, 1, 10_000)),
    }
    return {name: pool[name] for name in rng.sample(list(pool), rng.choice((0, 1, 2)))}


OPERATIONS: Final[dict[int, _Make]] = {
    frames.APPEND: _append,
    frames.SET_MESSAGE: lambda rng, world: [
        frames.SET_MESSAGE,
        _seq(rng),
        _value(rng),
        _headers(rng),
        _ttl(rng),
    ],
    frames.DELETE_MESSAGES: lambda rng, world: [
        frames.DELETE_MESSAGES,
        [_seq(rng) for _ in range(rng.choice((0, 1, 10, 1_000)))],
        rng.choice((None, None, 1)),
    ],
    frames.TRIM: lambda rng, world: [frames.TRIM, rng.choice((None, _seq(rng), _seq(rng)))],
    frames.SET_ENTRY: _set_entry,
    frames.DELETE_ENTRIES: lambda rng, world: [
        frames.DELETE_ENTRIES,
        [_key(rng) for _ in range(rng.choice((0, 1, 10, 300)))],
        rng.choice((None, None, 1)),
    ],
    frames.CLEAR: lambda rng, world: [frames.CLEAR],
    frames.BATCH: _batch,
    frames.CONFIGURE: lambda rng, world: [
        frames.CONFIGURE,
        _settings(rng),
        rng.choice((None, None, None, 1)),
    ],
    frames.PUT_CHUNK: lambda rng, world: [
        frames.PUT_CHUNK,
        _upload(rng, world),
        rng.choice((0, 0, 1_000, 2**40)),
        rng.randbytes(rng.choice((1, 1_000))),
    ],
    frames.DROP_UPLOADS: lambda rng, world: [
        frames.DROP_UPLOADS,
        [_upload(rng, world) for _ in range(3)],
    ],
    frames.PURGE: lambda rng, world: [
        frames.PURGE,
        rng.choice((None, _filter(rng), _subject(rng))),
        rng.choice((None, _seq(rng))),
        rng.choice((None, None, 0, 10)),
        rng.choice((None, None, 1)),
    ],
    frames.SET_CURSOR: lambda rng, world: [
        frames.SET_CURSOR,
        _cursor(rng),
        rng.choice((None, None, 1)),
        rng.choice((None, rng.randbytes(100))),
        rng.choice((None, rng.randbytes(10))),
        [[_seq(rng), rng.randbytes(9)] for _ in range(rng.choice((0, 1, 100)))],
        [_seq(rng) for _ in range(rng.choice((0, 1, 100)))],
    ],
    frames.DELETE_CURSOR: lambda rng, world: [
        frames.DELETE_CURSOR,
        _cursor(rng),
        rng.choice((None, None, 1)),
    ],
    frames.EXPECT: _expect,
    frames.DELETE_PREFIX: lambda rng, world: [
        frames.DELETE_PREFIX,
        _key(rng)[: rng.choice((0, 1, 3, 100))],
        rng.choice((None, 1, 1_024, 2**40)),
        rng.choice((None, _key(rng))),
    ],
    frames.EXPECT_PREFIX: lambda rng, world: [
        frames.EXPECT_PREFIX,
        _key(rng)[: rng.choice((0, 1, 3, 100))],
        rng.choice((None, [], [_key(rng) for _ in range(3)])),
        rng.choice((None, _seq(rng))),
    ],
    frames.CONSUMER_CONFIGURE: lambda rng, world: [
        frames.CONSUMER_CONFIGURE,
        f"c{rng.randrange(70)}",
        _consumer(rng),
        rng.choice((None, 1, _seq(rng))),
    ],
    frames.CONSUMER_FETCH: lambda rng, world: [
        frames.CONSUMER_FETCH,
        _seq(rng),
        rng.choice((1, 100, 4_096)),
    ],
    frames.CONSUMER_ACK: lambda rng, world: [
        frames.CONSUMER_ACK,
        _seq(rng),
        [[rng.randrange(4), _seq(rng), rng.randint(1, 3), 0] for _ in range(rng.choice((1, 100)))],
    ],
    frames.CONSUMER_DELETE: lambda rng, world: [frames.CONSUMER_DELETE, f"c{rng.randrange(70)}"],
    frames.GET_MESSAGE: lambda rng, world: [frames.GET_MESSAGE, _seq(rng)],
    frames.GET_MESSAGES: lambda rng, world: [
        frames.GET_MESSAGES,
        rng.choice((None, 1, _seq(rng))),
        rng.choice((None, _seq(rng))),
        rng.choice((None, None, 1, 2**50)),
        rng.choice((None, 1, 4_096)),
        rng.choice((None, 1, 50, 10**12)),
    ],
    frames.GET_ENTRY: lambda rng, world: [frames.GET_ENTRY, _key(rng)],
    frames.GET_ENTRIES: lambda rng, world: [
        frames.GET_ENTRIES,
        rng.choice(("", "key-1")),
        rng.choice((None, "", _key(rng))),
        rng.choice((None, 1, 4_096)),
        rng.random() < 0.5,
    ],
    frames.HEAD: lambda rng, world: [frames.HEAD],
    frames.CHANGES: lambda rng, world: [
        frames.CHANGES,
        rng.choice((0, 0, _seq(rng))),
        rng.choice((0, _seq(rng))),
        rng.choice((None, 1, 4_096)),
        rng.choice((None, 0, _seq(rng))),
    ],
    frames.CONFIG: lambda rng, world: [frames.CONFIG],
    frames.UPLOAD: lambda rng, world: [frames.UPLOAD, _upload(rng, world)],
    frames.READ_CHUNK: lambda rng, world: [
        frames.READ_CHUNK,
        _upload(rng, world),
        rng.choice((0, 1, 300_000)),
    ],
    frames.CONSUMERS: lambda rng, world: [
        frames.CONSUMERS,
        rng.choice((None, f"c{rng.randrange(70)}")),
    ],
    frames.GET_SEQS: lambda rng, world: [
        frames.GET_SEQS,
        [_seq(rng) for _ in range(rng.choice((0, 1, 100)))],
    ],
    frames.GET_KEYS: lambda rng, world: [
        frames.GET_KEYS,
        [_key(rng) for _ in range(rng.choice((0, 1, 100)))],
    ],
    frames.GET_BY_SUBJECT: lambda rng, world: [
        frames.GET_BY_SUBJECT,
        _filters(rng),
        rng.choice((None, _seq(rng))),
        rng.choice((None, None, 1, 2**50)),
        rng.choice((None, 1, 4_096)),
        rng.choice((None, 1, 100_000)),
    ],
    frames.GET_LASTS: lambda rng, world: [
        frames.GET_LASTS,
        _filters(rng),
        rng.choice((None, _seq(rng))),
        rng.choice((None, 0, _seq(rng))),
        rng.choice((None, 1, 4_096)),
    ],
    frames.SUBJECTS: lambda rng, world: [
        frames.SUBJECTS,
        rng.choice((None, _filter(rng))),
        rng.choice((None, _subject(rng))),
        rng.choice((None, 1, 4_096)),
    ],
    frames.COUNT: lambda rng, world: [
        frames.COUNT,
        _filters(rng),
        rng.choice((None, _seq(rng))),
        rng.random() < 0.5,
    ],
    frames.GAPS: lambda rng, world: [
        frames.GAPS,
        rng.choice((None, _seq(rng))),
        rng.choice((None, 1, 4_096)),
    ],
    frames.CHAIN: lambda rng, world: [
        frames.CHAIN,
        rng.choice((None, _seq(rng))),
        rng.choice((None, 1, 4_096)),
    ],
    frames.CURSORS: lambda rng, world: [
        frames.CURSORS,
        rng.choice((None, _cursor(rng))),
        rng.choice((None, _cursor(rng))),
        rng.choice((None, _seq(rng))),
    ],
    frames.GET_ENTRY_AT: lambda rng, world: [frames.GET_ENTRY_AT, _key(rng), _seq(rng)],
    frames.GET_ENTRIES_AT: lambda rng, world: [
        frames.GET_ENTRIES_AT,
        rng.choice((None, "", _key(rng))),
        rng.choice((None, _key(rng))),
        rng.choice((None, 1, 4_096)),
        rng.choice((None, True, False)),
        _seq(rng),
    ],
    frames.HISTORY: lambda rng, world: [
        frames.HISTORY,
        _key(rng),
        rng.choice((None, 0, _seq(rng))),
    ],
    frames.WATCH_META: lambda rng, world: [frames.WATCH_META],
}
_OF_A_KV: Final = frozenset(
    (
        frames.SET_ENTRY,
        frames.DELETE_ENTRIES,
        frames.CLEAR,
        frames.DELETE_PREFIX,
        frames.EXPECT_PREFIX,
        frames.GET_ENTRY,
        frames.GET_ENTRIES,
        frames.GET_KEYS,
        frames.GET_ENTRY_AT,
        frames.GET_ENTRIES_AT,
        frames.HISTORY,
        frames.WATCH_META,
    )
)
#: Writes of a gateway, besides appends.
_OF_GATEWAYS: Final = (frames.PURGE, frames.SET_CURSOR, frames.DELETE_CURSOR)
#: Removes much at once: drawn less often, so that there is something to read.
_RARE: Final = frozenset(
    (frames.TRIM, frames.CLEAR, frames.CONFIGURE, frames.PURGE, frames.DELETE_PREFIX)
)


def operation(number: int, rng: random.Random, world: World) -> Operation:
    """Return a valid operation of this number."""
    return OPERATIONS[number](rng, world)


def group(rng: random.Random, world: World, size: int = 0) -> list[Any]:
    """Return a valid group of writes or of reads, of one store; its writer is `writer_of`."""
    number = rng.choice(list(OPERATIONS))
    if number in _RARE and rng.random() < 0.7:
        number = frames.APPEND
    if number in _OF_A_KV:
        kind, name = StoreKind.KV, rng.choice(KVS)
    else:
        kind, name = StoreKind.STREAM, rng.choice(STREAMS)
    operations = [operation(number, rng, world) for _ in range(size or rng.choice((1, 1, 2, 20)))]
    counter = 0 if number >= frames.FIRST_READ else 1
    return [int(kind), name, counter, counter, rng.choice((0, 0, 0, 1, 2)), operations]


def numbered(groups: list[Any], writer: bytes, world: World) -> list[Any]:
    """Give each group of writes the next number of `writer`, and that as its first_unacked."""
    for each in groups:
        if each[2]:
            each[2] = each[3] = world.next_counter(writer, each[0], each[1])
    return groups


_Verb = Callable[[random.Random, World], dict[str, Any]]


def _stores(rng: random.Random, world: World) -> list[list[Any]]:
    return [[rng.choice((1, 2)), f"n{rng.randrange(1_000)}"] for _ in range(rng.choice((0, 1, 20)))]


def _of_server(*tail: Any) -> _Verb:
    """Return what a server would say of stores: each with a tenant, kind, name and `tail`."""

    def make(rng: random.Random, world: World) -> dict[str, Any]:
        server = rng.choice(world.servers)
        tenant = rng.choice((world.tenant, world.victim))
        stores = [
            [tenant, 1, rng.choice((f"torture.s{n}", f"s{n}")), *tail]
            for n in range(rng.choice((1, 5)))
        ]
        return {
            "server": server,
            "incarnation": world.incarnations.get(server, "none"),
            "stores": rng.choice((stores, stores, None)),
            "number": rng.randrange(5),
            "term": rng.choice((0, 1, 2**40)),
        }

    return make


def _report(rng: random.Random) -> bytes:
    """Return what a gateway could tell of itself, perhaps with a wrong number."""
    numbers = {
        "errors_total": {"code=busy": rng.choice((1, 2.5, -1, float("nan"), "many"))},
        "gateway_request_duration_seconds": [0.5, *(rng.randrange(9) for _ in range(16))],
        "unheard_of": rng.choice((1, [], {}, {"a=b": 1})),
    }
    return frames.encode({"started": 1, "host": rng.choice(("h", "")), "numbers": numbers})


#: Those of clients.
VERBS: Final[dict[str, _Verb]] = {
    "resolve": lambda rng, world: {"stores": _stores(rng, world)},
    "suspect": lambda rng, world: {
        "server": (server := rng.choice((*world.servers, "nosuch"))),
        "incarnation": rng.choice((world.incarnations.get(server, "none"), "none", "")),
    },
    "servers": lambda rng, world: {},
    "statistics": lambda rng, world: {
        "after": rng.choice((None, ["persist", "s1", ""], ["gateway_http", "g", world.victim]))
    },
    "report": lambda rng, world: {
        "kind": rng.choice(("gateway_http", "gateway_jetstream", "persist")),
        "name": rng.choice(("g1", "g2")),
        "report": _report(rng),
    },
    "stores": lambda rng, world: {
        "kind": rng.choice((None, 1, 2)),
        "prefix": rng.choice(("", "n", "s")),
        "after": rng.choice((None, ["n1", 1])),
        "limit": rng.choice((1, 100, 10**9)),
    },
}
#: Those of servers and operators, which no tenant has any business with.
FORGED_VERBS: Final[dict[str, _Verb]] = {
    "register": _of_server(),
    "prove": _of_server(),
    "seal": _of_server(),
    "open": _of_server(True, None),
    "adopt": _of_server(),
    "caches": _of_server(),
    "claim": _of_server(),
    "tend": _of_server(),
    "created": _of_server(1),
    "closed": _of_server(1, 1),
    "cold": _of_server(1, 1),
    "deleted": _of_server(1),
    "release": _of_server(1),
    "vacate": _of_server(),
    "drain": _of_server(),
    "undrain": _of_server(),
    "forget": lambda rng, world: {
        **_of_server()(rng, world),
        "reassign": rng.choice((True, False)),
    },
    "move": lambda rng, world: {
        "tenant": world.victim,
        "kind": rng.choice((1, 2)),
        "name": rng.choice(("notes", "settings")),
        "server": rng.choice(world.servers),
    },
    "rebalance": lambda rng, world: {"dry_run": rng.choice((True, False))},
    "tenants": _of_server(),
    "tenant": _of_server(),
    "owners": _of_server(),
    "usage": lambda rng, world: {
        **_of_server(rng.choice((0, 2**40)), 1)(rng, world),
        "tenants": rng.choice(
            ([[world.victim, 1e9, 1e9, 2**40, 2**40]], [[world.tenant, 0, 0]], None)
        ),
    },
    "cluster": _of_server(),
    "report": lambda rng, world: {
        "kind": rng.choice(("auth", "gateway_http", "persist")),
        "name": rng.choice(("g1", "auth")),
        "report": _report(rng),
    },
}


def heartbeat(rng: random.Random, world: World) -> dict[str, Any]:
    """Return what would drain a server, if anybody believed it."""
    server = rng.choice(world.servers)
    return {
        "server": server,
        "incarnation": world.incarnations.get(server, "none"),
        "state": str(rng.choice([ServerPhase.DRAINING, ServerPhase.STOPPING])),
        "open_stores": rng.choice((0, 2**63)),
        "log_bytes": 0,
        "operations_per_second": 0.0,
    }

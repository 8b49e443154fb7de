"""Floods: valid messages, of which there are too many or which are too large, drawn from a seed.

Pure.
"""

from __future__ import annotations

import random
from typing import Any, Final

from holdfast.protocol import frames
from holdfast.protocol.limits import MAX_FRAME_OPERATIONS
from tests.hostile import mutation, templates
from tests.hostile.templates import KVS, LARGE_STREAM, STREAMS, VERBS, World, numbered
from tests.hostile.volley import KV, STREAM, Aim, Attacks, Volley, weighing

#: As many as a frame takes, less for what a frame without mutations shall be.
_FULL: Final = MAX_FRAME_OPERATIONS

FLOODS: Final[Attacks] = {}


@weighing(FLOODS, 2)
def flood_of_pings(aim: Aim) -> None:
    count = aim.rng.choice((500, 5_000))
    ping = frames.encode_request(b"w", [])
    server = aim.server()
    for number in range(count):
        aim.send(server, ping, reply=b"%s.%d" % (aim.inbox, number))


@weighing(FLOODS, 2)
def flood_of_names(aim: Aim) -> None:
    """Names that were never written, asked for."""
    count = aim.rng.choice((1_000, 4_000, 10_000))
    kind = aim.rng.choice((STREAM, KV))
    stores = [[kind, f"r{aim.rng.getrandbits(48):x}"] for _ in range(count)]
    aim.send(aim.coordinator("resolve"), frames.encode_control(stores=stores), count)


@weighing(FLOODS, 1)
def flood_of_questions(aim: Aim) -> None:
    """The coordinator's verbs, many at once."""
    verb = aim.rng.choice(list(VERBS))
    for _ in range(300):
        aim.ask(verb, **VERBS[verb](aim.rng, aim.world))


@weighing(FLOODS, 1)
def flood_of_suspicions(aim: Aim) -> None:
    """Each server that lives is said to be dead."""
    for _ in range(100):
        server = aim.rng.choice(aim.world.servers)
        incarnation = aim.world.incarnations.get(server, "none")
        aim.ask("suspect", server=server, incarnation=incarnation)


@weighing(FLOODS, 14)
def flood_of_appends(aim: Aim) -> None:
    """Frames that are as full as they may be."""
    for _ in range(aim.rng.choice((1, 4, 8))):
        aim.operate(STREAM, aim.stream(), [[frames.APPEND, b"%08d" % n] for n in range(_FULL)])


@weighing(FLOODS, 3)
def flood_of_entries(aim: Aim) -> None:
    operations = [
        [frames.SET_ENTRY, f"key-{aim.rng.randrange(500)}", b"%d" % n] for n in range(_FULL)
    ]
    aim.operate(KV, aim.rng.choice(KVS), operations)


@weighing(FLOODS, 2)
def flood_of_batches(aim: Aim) -> None:
    """Batches as large as they may be, some of which cannot be carried out at their end."""
    members: list[Any] = [[frames.APPEND, b"%d" % n] for n in range(_FULL - 1)]
    last = aim.rng.choice(
        ([frames.APPEND, b"x"], [frames.EXPECT, None, 0], [frames.SET_MESSAGE, 2**62, b""])
    )
    aim.operate(STREAM, aim.stream(), [[frames.BATCH, [*members, last]]], _FULL)


@weighing(FLOODS, 6)
def flood_of_reads(aim: Aim) -> None:
    """Reads of as much as can be asked for, as often as a frame takes."""
    rng = aim.rng
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
            (STREAM, aim.stream(), [frames.GET_MESSAGE, rng.randint(1, 10_000)]),
            (STREAM, aim.stream(), [frames.CONSUMERS, None]),
            (KV, rng.choice(KVS), [frames.GET_ENTRIES, "", None, 4_096, True]),
            (KV, rng.choice(KVS), [frames.GET_ENTRIES, "key-", "key-4", 1, False]),
            (KV, rng.choice(KVS), [frames.GET_ENTRY, "key-1"]),
        )
    )
    count = min(_FULL, 800_000 // len(frames.pack(read)))
    aim.operate(kind, name, [read] * count)


@weighing(FLOODS, 2)
def flood_of_uploads(aim: Aim) -> None:
    """Uploads that nobody will finish, and chunks at offsets that cannot be."""
    rng, name = aim.rng, aim.stream()
    data = rng.randbytes(rng.choice((1, 1_000, 60_000)))
    operations: list[Any] = [[frames.PUT_CHUNK, rng.randbytes(16), 0, data] for _ in range(10)]
    operations += [
        [frames.PUT_CHUNK, rng.randbytes(16), rng.choice(mutation.INTEGERS), b"x"]
        for _ in range(60)
    ]
    rng.shuffle(operations)
    aim.operate(STREAM, name, operations)


@weighing(FLOODS, 3)
def flood_of_writers(aim: Aim) -> None:
    """A writer of its own for each write, in one store or several: each has an outcome to keep."""
    for _ in range(200):
        writer = aim.rng.randbytes(aim.rng.choice((1, 12, 32)))
        aim.request([[STREAM, aim.stream(), 1, 1, 0, [[frames.APPEND, b"w"]]]], writer)


@weighing(FLOODS, 3)
def standing_floors(aim: Aim) -> None:
    """A writer that never says what it has heard: all of its outcomes are to be kept."""
    writer = b"standing-%d" % aim.rng.randrange(4)
    name = aim.stream()
    server = aim.server(aim.world.owner(STREAM, name, aim.rng))
    for _ in range(20):
        groups = []
        for _ in range(100):
            counter = aim.world.next_counter(writer, STREAM, name)
            # Not a run, so the outcome holds every result.
            operations: list[Any] = [
                [frames.DELETE_MESSAGES, []] for _ in range(aim.rng.choice((1, 10)))
            ]
            groups.append([STREAM, name, counter, 1, 0, operations])
        count = sum(len(group[5]) for group in groups)
        aim.send(server, frames.encode_request(writer, groups), count)


@weighing(FLOODS, 2)
def odd_counters(aim: Aim) -> None:
    """Counters that jump, go back, and end."""
    rng = aim.rng
    for _ in range(100):
        counter = rng.choice((1, 2, 3, 10**6, 2**62, 2**63 - 1, rng.randrange(1, 1_000)))
        first_unacked = rng.choice((0, 1, counter, counter, counter - 1, rng.randint(0, counter)))
        name = aim.stream()
        groups = [[STREAM, name, counter, first_unacked, 0, [[frames.APPEND, b"c"]]]]
        payload = frames.encode_request(b"odd-%d" % rng.randrange(3), groups)
        aim.send(aim.server(aim.world.owner(STREAM, name, rng)), payload)


@weighing(FLOODS, 3)
def flood_of_msg_ids(aim: Aim) -> None:
    """Ids that are to be remembered for as long as one may ask."""
    rng, name = aim.rng, aim.stream()
    operations: list[Any] = [[frames.CONFIGURE, {"dedupe_window_seconds": 86_400.0}]]
    operations += [
        [frames.APPEND, b"", None, rng.randbytes(8).hex() * rng.choice((1, 1, 16))]
        for _ in range(1_000)
    ]
    aim.operate(STREAM, name, operations)


@weighing(FLOODS, 3)
def flood_of_consumers(aim: Aim) -> None:
    """Consumers, as many as there may be, that fetch all there is and acknowledge at random."""
    rng, configure = aim.rng, frames.CONSUMER_CONFIGURE
    name = rng.choice((*STREAMS, LARGE_STREAM))
    operations: list[Any] = []
    for number in range(70):
        wait_seconds = rng.choice((0.001, 0.1, 30.0))
        settings = {"max_ack_pending": 10_000, "ack_wait_seconds": wait_seconds}
        operations.append([configure, f"c{number}", settings, 1])
    ids = [rng.randint(1, 200) for _ in range(100)]
    operations += [[frames.CONSUMER_FETCH, id, 4_096] for id in ids]
    for id in rng.sample(ids, 10):
        acks = [[rng.randrange(4), n, 1, rng.choice((0, 1, 10**9))] for n in range(1, 500)]
        operations.append([frames.CONSUMER_ACK, id, acks])
    operations += [[frames.CONSUMER_DELETE, f"c{n}"] for n in range(0, 70, 5)]
    aim.operate(STREAM, name, operations)


@weighing(FLOODS, 2)
def flood_of_stores(aim: Aim) -> None:
    """Stores that are made for one message."""
    groups = []
    for _ in range(50):
        name = f"n{aim.rng.randrange(100_000)}"
        aim.world.stores.append((STREAM, name))
        groups.append([STREAM, name, 1, 1, 0, [[frames.APPEND, b"x"]]])
    del aim.world.stores[:-1_000]
    stores = [group[:2] for group in groups]
    aim.send(aim.coordinator("resolve"), frames.encode_control(stores=stores), len(groups))
    writer = aim.writer()
    payload = frames.encode_request(writer, numbered(groups, writer, aim.world))
    for server in aim.world.servers:
        aim.send(aim.server(server), payload, len(groups))


@weighing(FLOODS, 2)
def flood_of_deletes(aim: Aim) -> None:
    """Deletes that name much, and trims again and again."""
    seqs = list(range(1, 4_097))
    operations: list[Any] = aim.rng.choice(
        (
            [[frames.DELETE_MESSAGES, seqs] for _ in range(20)],
            [[frames.TRIM, n] for n in range(1, 2_000)],
            [[frames.APPEND, b"t"], [frames.TRIM, None]] * 1_000,
            [[frames.DELETE_MESSAGES, [n]] for n in range(1, 4_000)],
        )
    )
    aim.operate(STREAM, aim.stream(), operations)


@weighing(FLOODS, 1)
def flood_of_settings(aim: Aim) -> None:
    """Limits that change all the time, with what they evict."""
    operations: list[Any] = []
    for n in range(300):
        operations.append([frames.CONFIGURE, {"description": f"{n}", "max_messages": 10 + n % 3}])
        operations.append([frames.APPEND, b"e"])
    operations.append([frames.CONFIGURE, dict.fromkeys(("max_messages", "description"))])
    aim.operate(STREAM, aim.stream(), operations)


@weighing(FLOODS, 1)
def flood_of_large_values(aim: Aim) -> None:
    """Frames that are as long as NATS takes."""
    for _ in range(8):
        value = aim.rng.randbytes(999_000)
        aim.operate(STREAM, aim.stream(), [[frames.APPEND, value]])


@weighing(FLOODS, 2)
def replays(aim: Aim) -> None:
    """The same frame again and again."""
    group = templates.group(aim.rng, aim.world, 20)
    message = aim.request([group], operation_count=20)
    copies = aim.rng.choice((10, 300)) - 1
    aim.raw(message * copies, 20 * copies)


@weighing(FLOODS, 1)
def other_owners(aim: Aim) -> None:
    """One frame for the stores of everybody, sent to each server."""
    groups = [
        [STREAM, name, 0, 0, 0, [[frames.HEAD]]]
        for name in [*STREAMS, *(f"u{aim.rng.randrange(10_000)}" for _ in range(200))]
    ]
    payload = frames.encode_request(b"w", groups)
    for server in (*aim.world.servers, "nosuch"):
        aim.send(aim.server(server), payload, len(groups))


def filling(rng: random.Random, world: World, inbox: bytes, message_count: int) -> Volley:
    """Return what makes the large stream large."""
    aim = Aim(rng, world, inbox)
    operations: list[Any] = [[frames.APPEND, b"%08d" % n] for n in range(2_000)]
    for _ in range(message_count // len(operations)):
        aim.operate(STREAM, LARGE_STREAM, operations)
    return aim.volley(apart=False, deaf=False)

"""What any peer can send to a persist server: whatever it is, it gets a typed answer and the server
serves the next one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest

from holdfast.protocol import frames
from holdfast.protocol.bus.bus import BusMessage
from holdfast.protocol.errors import ERRORS_BY_CODE, ProtocolError, RequestError
from holdfast.protocol.limits import MAX_FRAME_OPERATIONS
from holdfast.protocol.names import StoreId, StoreKind
from tests.support.cluster import (
    DEADLINE_SECONDS,
    SUBJECTS,
    TENANT,
    Peer,
    Processes,
    all_files,
    refusal,
    serving,
)

STREAM, KV = int(StoreKind.STREAM), int(StoreKind.KV)
HUGE = (1 << 63) - 1


@asynccontextmanager
async def served(tmp_path: Path) -> AsyncIterator[tuple[Processes, Peer]]:
    """Run one persist server around the body, which must be well afterwards."""
    async with serving(tmp_path) as (processes, server, peer):
        yield processes, peer
        assert (await peer.write("after", 1, [frames.APPEND, b"v"])).results == [[1, 1]]
        assert server.running
        assert "Traceback" not in server.log


def request(*groups: Any, writer: Any = b"peer") -> bytes:
    return frames.encode([writer, list(groups)])


BAD_FRAMES: dict[str, bytes] = {
    "empty": b"",
    "version 0": b"\x00" + frames.pack([b"w", []]),
    "version 2": b"\x02" + frames.pack([b"w", []]),
    "text": b"GET / HTTP/1.1\r\n\r\n",
    "only a version": b"\x01",
    "not msgpack": b"\x01\xc1",
    "cut short": request((STREAM, "a", 1, 1, 0, [[1, b"v"]]))[:-3],
    "more after the end": request((STREAM, "a", 1, 1, 0, [[1, b"v"]])) + b"\x00",
    "a map": frames.encode({"a": 1}),
    "nothing": frames.encode(None),
    "deep": b"\x01" + b"\x91" * 3000 + b"\x90",
    "a huge length": b"\x01\xdd\xff\xff\xff\xff",
    "no writer": frames.encode([[(STREAM, "a", 1, 1, 0, [[1, b"v"]])]]),
    "a long writer": request((STREAM, "a", 1, 1, 0, [[1, b"v"]]), writer=bytes(33)),
    "groups that are none": frames.encode([b"w", 5]),
    "a short group": request((STREAM, "a", 1)),
    "a negative counter": request((STREAM, "a", -1, -1, 0, [[1, b"v"]])),
    "a counter beyond 63 bits": request((STREAM, "a", 1 << 63, 1, 0, [[1, b"v"]])),
    "a `first_unacked` above the counter": request((STREAM, "a", 1, 2, 0, [[1, b"v"]])),
    "no operations": request((STREAM, "a", 1, 1, 0, [])),
    "an empty operation": request((STREAM, "a", 1, 1, 0, [[]])),
    "an operation by name": request((STREAM, "a", 1, 1, 0, [["append", b"v"]])),
    "too many operations": request((STREAM, "a", 1, 1, 0, [[1, b""]] * (MAX_FRAME_OPERATIONS + 1))),
    "too many in a batch": request((STREAM, "a", 1, 1, 0, [[8, [[1, b""]] * 9000]])),
    "an extension type": frames.encode([msgpack.ExtType(5, b"x"), []]),
    "a map with odd keys": b"\x01\x81\x91\x01\x02",
}
BAD_GROUPS: dict[str, tuple[Any, ...]] = {
    "no such kind": (3, "a", 1, 1, 0, [[1, b"v"]]),
    "a huge kind": (HUGE, "a", 1, 1, 0, [[1, b"v"]]),
    "an empty name": (STREAM, "", 1, 1, 0, [[1, b"v"]]),
    "a path": (STREAM, "../../etc/passwd", 1, 1, 0, [[1, b"v"]]),
    "a wildcard": (STREAM, "a.*", 1, 1, 0, [[1, b"v"]]),
    "a long name": (STREAM, "a" * 201, 1, 1, 0, [[1, b"v"]]),
    "writes and reads": (STREAM, "a", 1, 1, 0, [[1, b"v"], [36]]),
    "reads with a counter": (STREAM, "a", 1, 1, 0, [[36]]),
    "writes without one": (STREAM, "a", 0, 0, 0, [[1, b"v"]]),
    "a level that is not offered": (STREAM, "bad.level", 1, 1, 3, [[1, b"v"]]),
    "a level that is none": (STREAM, "bad.level", 1, 1, HUGE, [[1, b"v"]]),
    "a counter that comes too early": (STREAM, "early", HUGE, 1, 0, [[1, b"v"]]),
}
BAD_OPERATIONS: dict[str, tuple[int, int, list[Any]]] = {
    "an unknown write": (STREAM, 1, [31]),
    "an unknown read": (STREAM, 0, [HUGE]),
    "a negative operation": (STREAM, 1, [-5]),
    "a kv's on a stream": (STREAM, 1, [frames.SET_ENTRY, "k", b"v"]),
    "a stream's on a kv": (KV, 1, [frames.APPEND, b"v"]),
    "a stream's read on a kv": (KV, 0, [frames.GET_MESSAGES]),
    "text for a value": (STREAM, 1, [frames.APPEND, "text"]),
    "a number for a key": (KV, 1, [frames.SET_ENTRY, 5, b"v"]),
    "a list for headers": (STREAM, 1, [frames.APPEND, b"v", ["h"]]),
    "a huge seq": (STREAM, 1, [frames.SET_MESSAGE, (1 << 64) - 1, b"v"]),
    "seq 0": (STREAM, 1, [frames.SET_MESSAGE, 0, b"v"]),
    "true for a seq": (STREAM, 1, [frames.SET_MESSAGE, True, b"v"]),
    "lists in a delete": (STREAM, 1, [frames.DELETE_MESSAGES, [[1]]]),
    "an empty batch": (STREAM, 1, [frames.BATCH, []]),
    "a batch in a batch": (STREAM, 1, [frames.BATCH, [[frames.BATCH, [[1, b""]]]]]),
    "no arguments": (STREAM, 1, [frames.APPEND]),
    "a read without arguments": (STREAM, 0, [frames.GET_MESSAGE]),
    "text for a limit": (STREAM, 0, [frames.GET_MESSAGES, 1, None, None, "x"]),
    "changes after a huge revision": (STREAM, 0, [frames.CHANGES, 1 << 63, 0]),
}


async def test_frames_that_are_none_are_refused_as_a_whole(tmp_path: Path) -> None:
    async with served(tmp_path) as (processes, peer):
        for what, payload in BAD_FRAMES.items():
            ((index, is_error, code, _),) = await peer.ask(payload)
            assert (index, is_error) == (-1, 1), what
            assert issubclass(ERRORS_BY_CODE[code], ProtocolError), what
        assert all_files(processes, "a") == []


async def test_groups_that_make_no_sense_are_refused_and_their_neighbours_served(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as (processes, peer):
        for counter, (what, group) in enumerate(BAD_GROUPS.items(), start=1):
            good = (STREAM, "good", counter, counter, 0, [[1, b"v"]])
            refused, (_, is_error, outcome) = await peer.ask(request(group, good), groups=2)
            assert refused[:2] == [0, 1], what
            assert issubclass(ERRORS_BY_CODE[refused[2]], RequestError | ProtocolError) or (
                refused[2] == "writer_gap"
            ), what
            assert is_error == 0
            assert frames.decode_outcome(outcome).results == frames.Run(counter, counter, 1)
        for name in ("a", "bad.level", "early"):
            assert all_files(processes, name) == []


async def test_operations_that_make_no_sense_are_refused_one_by_one(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, peer):
        counters = {STREAM: 0, KV: 0}
        for what, (kind, writes, operation) in BAD_OPERATIONS.items():
            counters[kind] += writes
            counter = counters[kind] if writes else 0
            (result,) = (await peer.group((kind, "odd", counter, counter, 0, [operation]))).results
            assert type(result[0]) is str, what
            assert issubclass(ERRORS_BY_CODE[result[0]], RequestError | ProtocolError), what
        for kind in StoreKind:
            assert (await peer.read("odd", [frames.HEAD], kind=kind))[0][:5] == [0, 1, 0, 0, 0]


async def test_random_and_mutated_frames_never_take_the_server_down(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, peer):
        rng = random.Random(17)
        whole = request(
            (STREAM, "mutant", 1, 1, 0, [[1, b"value", {"h": "x"}, "id", 0], [8, [[1, b""]]]]),
            (KV, "mutant", 0, 0, 0, [[34, "key"], [37, 0, 0, 9, 0]]),
        )
        subject = SUBJECTS.server(TENANT, "s1")
        for _ in range(1500):
            payload = bytearray(whole)
            for _ in range(rng.randint(1, 6)):
                payload[rng.randrange(len(payload))] = rng.randrange(256)
            await peer.bus.publish(subject, bytes(payload), peer.bus.new_inbox(TENANT))
        for _ in range(500):
            await peer.bus.publish(subject, rng.randbytes(rng.randint(0, 99)), "no.such.inbox")
        await peer.bus.flush()


async def test_odd_subjects_and_replies_are_survived(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, peer):
        append = request((STREAM, "odd", 1, 1, 0, [[1, b"v"]]))
        # No reply, the server's own subject as the reply, and the cluster's token as the tenant.
        await peer.bus.publish(SUBJECTS.server(TENANT, "s1"), append)
        await peer.bus.publish(SUBJECTS.server(TENANT, "s1"), append, SUBJECTS.server(TENANT, "s1"))
        for tenant in ("_", "a$b", "x" * 64):
            ((index, _, code, _),) = await peer.ask(append, tenant=tenant)
            assert (index, code) == (-1, "invalid_name")
        for payload in (b"", b"\x02", frames.encode([1]), frames.encode_control(command="x"),
                        frames.encode({"error": "busy", "fields": [1]}),
                        frames.encode_control(command=["x"]), frames.encode({1: 2})):  # fmt: skip
            answer = await peer.bus.request(SUBJECTS.control("s1"), payload, DEADLINE_SECONDS)
            assert b"error" in answer


async def test_many_long_keys_are_written_broadcast_read_and_deleted(tmp_path: Path) -> None:
    """None of the frames that this makes may outgrow what NATS carries."""
    async with served(tmp_path) as (_, peer):
        keys = [f"{number:01000d}" for number in range(2000)]
        changes: list[bytes] = []

        def keep(message: BusMessage) -> None:
            changes.append(message.payload)

        store = StoreId(TENANT, StoreKind.KV, "long")
        await peer.bus.subscribe(SUBJECTS.changes(store), keep)
        await peer.bus.flush()
        for counter, start in enumerate(range(0, 2000, 500), start=1):
            operations = [[frames.SET_ENTRY, key, b""] for key in keys[start : start + 500]]
            await peer.write("long", counter, *operations, kind=StoreKind.KV)
        found: list[str] = []
        after = None
        while True:
            wanted = [frames.GET_ENTRIES, "", after]
            ((page, after),) = await peer.read("long", wanted, kind=StoreKind.KV)
            found += [row[0] for row in page]
            if after is None:
                break
        assert found == keys
        wrong = [[frames.SET_ENTRY, key, b"", None, 1 << 40] for key in keys[:900]]
        outcome = await peer.write("long", 5, *wrong, kind=StoreKind.KV)
        assert {result[0] for result in outcome.results} == {"wrong_revision"}
        gets = [[frames.GET_ENTRY, key] for key in keys[:900]]
        assert 0 < len(await peer.read("long", *gets, kind=StoreKind.KV)) < 900
        for counter, start in enumerate(range(0, 2000, 500), start=6):
            delete = [frames.DELETE_ENTRIES, keys[start : start + 500]]
            await peer.write("long", counter, delete, kind=StoreKind.KV)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while (
                not changes
                or frames.decode_changes(changes[-1]).changes[-1][0] != 6
                or (frames.decode_changes(changes[-1]).previous_revision < 2003)
            ):
                await asyncio.sleep(0.02)
        revision = 0
        for payload in changes:
            batch = frames.decode_changes(payload)
            assert batch.previous_revision == revision
            revision += len(batch.changes)
        assert revision == 2004


async def test_the_largest_value_goes_there_and_back(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, peer):
        value = bytes(range(250)) * 4000
        headers = {"h": "x" * 16_000}
        assert (await peer.write("big", 1, [frames.APPEND, value, headers])).results == [[1, 1]]
        (row,) = await peer.read("big", [frames.GET_MESSAGE, 1])
        assert (row[3], row[4]) == (value, headers)


async def test_reading_a_store_that_nobody_wrote_makes_no_file(tmp_path: Path) -> None:
    async with served(tmp_path) as (processes, peer):
        reads: dict[StoreKind, list[list[Any]]] = {
            StoreKind.STREAM: [[frames.GET_MESSAGE, 1], [frames.GET_MESSAGES], [frames.HEAD]],
            StoreKind.KV: [[frames.GET_ENTRY, "k"], [frames.GET_ENTRIES], [frames.CHANGES, 0, 0]],
        }
        for kind, operations in reads.items():
            results = await peer.read("nobody", *operations, kind=kind)
            assert results[:2] == [None, [[], None]]
            assert all_files(processes, "nobody", kind) == []
        # And then it can be written.
        assert (await peer.write("nobody", 1, [frames.APPEND, b"v"])).results == [[1, 1]]


@pytest.mark.parametrize("kind", StoreKind)
async def test_a_retry_gets_the_first_answer_and_a_given_up_group_is_refused(
    tmp_path: Path, kind: StoreKind
) -> None:
    operation: list[Any] = (
        [frames.APPEND, b"v"] if kind is StoreKind.STREAM else [frames.SET_ENTRY, "k", b"v"]
    )
    async with served(tmp_path) as (_, peer):
        first = await peer.write("retry", 1, operation, kind=kind)
        for _ in range(3):
            assert await peer.write("retry", 1, operation, kind=kind) == first
        await peer.write("retry", 5, operation, kind=kind, first_unacked=5)
        late = await refusal(peer.write("retry", 3, operation, kind=kind))
        assert late.code == "stale_write"
        assert (await peer.read("retry", [frames.HEAD], kind=kind))[0][0] == 2


async def test_no_reply_goes_to_another_tenant(tmp_path: Path) -> None:
    """Nor to the cluster's inboxes, nor to change subjects, whoever of a server and the coordinator
    is asked."""
    async with served(tmp_path) as (_, peer):
        heard: list[str] = []
        for subject in ("_INBOX.>", f"{SUBJECTS.prefix}.*.chg.>", "reply"):
            await peer.bus.subscribe(subject, lambda message: heard.append(message.subject))
        wrong = [
            "_INBOX.victim.x.1",
            f"_INBOX.{TENANT}2.x.1",
            "_INBOX._.x.1",
            "_INBOX.x",
            f"{SUBJECTS.prefix}.victim.chg.s.notes",
            "reply",
        ]
        asked = [
            (
                SUBJECTS.server(TENANT, "s1"),
                request((STREAM, "a", 1, 1, 0, [[frames.APPEND, b"v"]])),
            ),
            (SUBJECTS.server(TENANT, "s1"), request()),
            (SUBJECTS.server(TENANT, "s1"), b"\x02"),
            (
                SUBJECTS.destroy(TENANT, "s1"),
                frames.encode_control(job="j", store=[1, "a"], epoch=1),
            ),
            (SUBJECTS.coordinator(TENANT, "servers"), frames.encode_control()),
            (SUBJECTS.coordinator(TENANT, "nonsense"), b""),
        ]
        for reply in wrong:
            for subject, payload in asked:
                await peer.bus.publish(subject, payload, reply)
        for subject in (SUBJECTS.control("s1"), SUBJECTS.operator("s1"), SUBJECTS.cluster("drain")):
            await peer.bus.publish(subject, frames.encode_control(), f"_INBOX.{TENANT}.x.1")
        # What is asked rightly, and later, is answered.
        good = f"_INBOX.{TENANT}.good"
        for number, (subject, payload) in enumerate(asked):
            await peer.bus.publish(subject, payload, f"{good}.{number}")
        async with asyncio.timeout(DEADLINE_SECONDS):
            while sum(subject.startswith(good) for subject in heard) < len(asked):
                await asyncio.sleep(0.01)
        await peer.write("b", 1, [frames.APPEND, b"v"])
        assert sum(subject.startswith(good) for subject in heard) == len(asked)
        assert not set(wrong).intersection(heard)
        assert f"_INBOX.{TENANT}.x.1" not in heard

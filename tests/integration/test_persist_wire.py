"""What any peer can send to a persist server: whatever it is, it gets a typed answer and the server
serves the next one."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.protocol import frames
from holdfast.protocol.names import StoreKind
from tests.support.cluster import (
    DEADLINE_SECONDS,
    SUBJECTS,
    TENANT,
    Peer,
    Processes,
    refusal,
    serving,
)
from tests.support.waiting import until

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
        for nonsense in (b"", b"\x01\xc1", append[:-3]):
            ((index, is_error, code, _),) = await peer.ask(nonsense)
            assert (index, is_error, code) == (-1, 1, "malformed_frame")
        for payload in (b"", b"\x02", frames.encode([1]), frames.encode_control(command="x"),
                        frames.encode({"error": "busy", "fields": [1]}),
                        frames.encode_control(command=["x"]), frames.encode({1: 2})):  # fmt: skip
            answer = await peer.bus.request(SUBJECTS.control("s1"), payload, DEADLINE_SECONDS)
            assert b"error" in answer


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
        await until(lambda: sum(each.startswith(good) for each in heard) >= len(asked), "answers")
        await peer.write("b", 1, [frames.APPEND, b"v"])
        assert sum(subject.startswith(good) for subject in heard) == len(asked)
        assert not set(wrong).intersection(heard)
        assert f"_INBOX.{TENANT}.x.1" not in heard

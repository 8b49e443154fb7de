"""The recorder of the audit log, beside an owner of its stream that may lose answers or be away."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.coordinator.background_tasks import BackgroundTasks
from holdfast.coordinator.life import Life
from holdfast.coordinator.peers import audit_recorder
from holdfast.coordinator.peers.audit_outbox_watch import AuditOutboxWatch
from holdfast.coordinator.peers.audit_recorder import AuditRecorder
from holdfast.coordinator.storage import Storage
from holdfast.coordinator.storage_use import StorageUse
from holdfast.coordinator.wakeup import Wakeup
from holdfast.protocol import frames
from holdfast.protocol.access.audit_event import (
    AUDIT_STORE,
    AuditAction,
    AuditEvent,
    AuditOutcome,
)
from holdfast.protocol.bus.bus import BusMessage
from holdfast.protocol.bus.bus_memory import MemoryNetwork
from holdfast.protocol.errors import MalformedFrameError, NotOwnerError, UnavailableError
from holdfast.protocol.messages import Durability
from holdfast.protocol.serving.audit_trail import tell_recorder
from holdfast.protocol.serving.mishaps import Mishaps
from holdfast.protocol.subjects import Subjects
from holdfast.shared_fs.access.audit_outbox import AuditOutbox
from holdfast.shared_fs.bucket.bucket import open_bucket
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout
from tests.support.tokens import Tokens, a_token

EVENT = AuditEvent("e1", 1, AuditAction.SERVER_DRAINED, AuditOutcome.DONE, "persist s1", "h")
SUBJECTS = Subjects()


@dataclass
class World:
    """A recorder, a server that tells it something, and the owner of the stream."""

    network: MemoryNetwork
    tokens: Tokens | None = None
    outbox: AuditOutbox | None = None
    #: By `msg_id`.
    messages: dict[str, dict[str, Any]] = field(default_factory=dict)
    configured: list[Any] = field(default_factory=list)
    #: Whether the stream existed before.
    revision: int = 0
    #: How many answers are lost once the events are stored.
    lost_answers: int = 0
    answers: list[asyncio.Future[None]] = field(default_factory=list)
    #: What somebody answers in place of the owner.
    forged: bytes | None = None
    #: What somebody answers in place of the coordinator.
    forged_owners: bytes | None = None

    def recorder(self) -> AuditRecorder:
        return AuditRecorder(self.life)

    async def begin(self, root: Path) -> None:
        bus = self.network.connect("coordinator")
        self.life = Life(
            id="c",
            bus=bus,
            subjects=SUBJECTS,
            storage=Storage(Layout(root), Disk(), tokens=self.tokens, outbox=self.outbox),
            clock_ms=lambda: 7,
            background_tasks=BackgroundTasks(asyncio.to_thread),
            wakeup=Wakeup(),
            mishaps=Mishaps(logging.getLogger("test")),
            storage_use=StorageUse(lambda: 0.0),
        )
        self.owner = self.network.connect("s1")
        await self.owner.subscribe(SUBJECTS.cluster("owners"), self._owners)
        await self.owner.subscribe(SUBJECTS.own("s1", AUDIT_STORE.tenant), self._frame)

    def _owners(self, message: BusMessage) -> None:
        owners = frames.encode_control(term=1, owners=[["s1", "i", 1]])
        self._answer(message, owners if self.forged_owners is None else self.forged_owners)

    def _frame(self, message: BusMessage) -> None:
        if self.forged is not None:
            self._answer(message, self.forged)
            return
        _, [group] = frames.decode_request(message.payload)
        assert (group.kind, group.name) == AUDIT_STORE[1:]
        if group.operations[0][0] == frames.HEAD:
            results: list[Any] = [[self.revision, 1, 0, 0, 0, 1, "s1"]]
        else:
            assert group.durability == Durability.SYNCED
            results = [self._do(operation) for operation in group.operations]
            if group.operations[0][0] == frames.APPEND and self.lost_answers:
                self.lost_answers -= 1
                error = NotOwnerError(server="s1")
                self._answer(message, frames.encode([frames.error_result(0, error)]))
                return
        outcome = frames.encode_outcome(1, 1, int(Durability.SYNCED), results)
        self._answer(message, frames.encode([[0, 0, outcome]]))

    def _do(self, operation: list[Any]) -> list[Any]:
        if operation[0] == frames.CONFIGURE:
            self.configured.append(operation[1])
            self.revision += 1
            return [self.revision, {}]
        _, value, _, msg_id = operation
        if msg_id not in self.messages:
            self.messages[msg_id] = json.loads(value)
            self.revision += 1
        return [len(self.messages), self.revision, 1, True]

    def _answer(self, message: BusMessage, payload: bytes) -> None:
        self.answers.append(asyncio.ensure_future(self.owner.publish(message.reply, payload)))


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_recorder, "_RETRY_SECONDS", 0.0)


@asynccontextmanager
async def a_world(tmp_path: Path, **fields: Any) -> AsyncIterator[World]:
    world = World(MemoryNetwork(), **fields)
    await world.begin(tmp_path)
    async with world.life.background_tasks:
        yield world


async def test_an_event_whose_answer_was_lost_is_stored_once(tmp_path: Path) -> None:
    async with a_world(tmp_path, lost_answers=2) as world:
        recorder = world.recorder()
        await recorder.record([EVENT, replace(EVENT, id="e2")])
        # Another recorder, after the first one was killed before it could answer.
        await world.recorder().record([EVENT])
        assert list(world.messages) == ["e1", "e2"]
        assert world.messages["e1"]["mode"] == "open"
        [config] = {str(each) for each in world.configured}
        assert "max_age_seconds" in config


async def test_a_log_that_exists_keeps_the_configuration_of_its_operators(tmp_path: Path) -> None:
    async with a_world(tmp_path, revision=3) as world:
        await world.recorder().record([EVENT])
        assert world.configured == []


async def test_a_log_that_was_deleted_is_configured_again(tmp_path: Path) -> None:
    async with a_world(tmp_path) as world:
        recorder = world.recorder()
        await recorder.record([EVENT])
        world.revision = 0
        await recorder.record([replace(EVENT, id="e2")])
        assert len(world.configured) == 2


async def test_what_a_server_tells_is_answered_once_it_is_stored(tmp_path: Path) -> None:
    token = a_token(tenant="*", subject="ann")
    async with a_world(tmp_path, tokens=Tokens(token)) as world:
        recorder = world.recorder()
        await world.life.bus.subscribe(SUBJECTS.audit(), recorder.on_message)
        server = world.network.connect("s2")
        told = [
            replace(EVENT, token=token.id, subject="forged", issuer="forged"),
            replace(EVENT, id="e2", token="x" * 20, subject="forged"),
        ]
        await tell_recorder(server, SUBJECTS)(told)
        known, unknown = world.messages.values()
        assert (known["subject"], known["issuer"], known["mode"]) == ("ann", "cluster", "tokens")
        assert "subject" not in unknown
        for nonsense in (b"", frames.encode_control(events=3), frames.encode_control(events=[3])):
            reply = await server.request(SUBJECTS.audit(), nonsense, 5.0)
            assert frames.decode(reply)["error"], nonsense
        with pytest.raises(UnavailableError):
            await world.owner.close()
            await tell_recorder(server, SUBJECTS)([EVENT])


async def test_the_outbox_is_emptied_once_its_events_are_stored(tmp_path: Path) -> None:
    outbox = AuditOutbox(None, tmp_path / "audit")
    for number in range(3):
        outbox.put([replace(EVENT, id=f"o{number}")])
    [first, *_] = outbox.waiting()
    bucket = open_bucket((tmp_path / "audit").as_uri())
    bucket.put_new("events/o0-nonsense", b"nonsense")
    async with a_world(tmp_path, outbox=outbox, lost_answers=1) as world:
        watch = AuditOutboxWatch(world.life, outbox, world.recorder())
        await watch.look()
        assert list(world.messages) == ["o0", "o1", "o2"]
        # What makes no sense stays, and holds nothing up.
        assert list(outbox.waiting()) == ["events/o0-nonsense"]
        assert first == "events/o0"


_NO_RESULTS = frames.encode_outcome(1, 1, int(Durability.SYNCED), [])


@pytest.mark.parametrize(
    "forged",
    [
        {"forged_owners": frames.encode_control(term=1)},
        {"forged_owners": frames.encode_control(owners=[])},
        {"forged_owners": frames.encode_control(owners=[[]])},
        {"forged": frames.encode([])},
        {"forged": frames.encode([[0]])},
        {"forged": frames.encode([[0, 1]])},
        {"forged": frames.encode([[0, 0, _NO_RESULTS]])},
    ],
)
async def test_an_answer_of_a_wrong_shape_is_an_error_of_ours(
    tmp_path: Path, forged: dict[str, bytes]
) -> None:
    async with a_world(tmp_path, **forged) as world:
        with pytest.raises(MalformedFrameError):
            await world.recorder().record([EVENT])

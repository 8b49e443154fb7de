"""How a persist server begins to end: only once the audit log has what its operators did."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from holdfast.persist import service
from holdfast.persist.parts import Parts
from holdfast.persist.service import PersistServer
from holdfast.persist.threads.spawned_tasks import SpawnedTasks
from holdfast.protocol.access.audit_event import AuditAction, AuditEvent
from holdfast.protocol.bus.bus_memory import MemoryNetwork
from holdfast.protocol.serving.audit_trail import AuditTrail
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout
from tests.support.waiting import until


class Recorder:
    """Records what it is given once it may."""

    def __init__(self) -> None:
        self.may = asyncio.Event()

    async def __call__(self, events: Sequence[AuditEvent]) -> None:
        await self.may.wait()


@pytest.mark.parametrize("ends_by", ["told", "asked again", "patience"])
async def test_a_server_tells_the_audit_log_before_it_hands_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_by: str
) -> None:
    monkeypatch.setattr(service, "_DEEDS_SECONDS", 0.2 if ends_by == "patience" else 30.0)
    server = PersistServer(MemoryNetwork().connect("s1"), Layout(tmp_path), Disk(), "s1")
    recorder, tasks = Recorder(), SpawnedTasks()
    trail = AuditTrail("test", recorder, lambda: 7)
    server.parts = cast(Parts, SimpleNamespace(audit_trail=trail, tasks=tasks))
    running = asyncio.create_task(trail.run())
    stopping = server._phase.stopping
    trail.record(AuditAction.STORE_PURGED)
    server.stop()
    await asyncio.sleep(0.05)
    assert not stopping.is_set()
    if ends_by == "told":
        recorder.may.set()
    elif ends_by == "asked again":
        server.stop()
        assert stopping.is_set()
    await until(stopping.is_set, "it ends")
    assert trail.undelivered_count == (0 if ends_by == "told" else 1)
    tasks.cancel()
    running.cancel()


async def test_a_server_that_has_nothing_to_tell_begins_to_end_at_once(tmp_path: Path) -> None:
    server = PersistServer(MemoryNetwork().connect("s1"), Layout(tmp_path), Disk(), "s1")
    server.stop()
    assert server._phase.stopping.is_set()

"""What a process tells the audit log: in the background, until it is recorded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest

from holdfast.protocol.access.audit_event import AuditAction, AuditEvent, AuditOutcome
from holdfast.protocol.errors import BusyError, NotAllowedError, NotFoundError, UnavailableError
from holdfast.protocol.serving import trouble
from holdfast.protocol.serving.audit_trail import AuditTrail, note_refusal
from tests.support.waiting import until


class Recorder:
    """A recorder that may fail, before or after it has recorded."""

    def __init__(self) -> None:
        self.failures = 0
        self.recorded: list[AuditEvent] = []
        self.forgets_answer = False

    async def __call__(self, events: Sequence[AuditEvent]) -> None:
        if self.failures:
            self.failures -= 1
            if self.forgets_answer:
                self.recorded += events
            raise UnavailableError(reason="away")
        self.recorded += events


async def test_events_are_told_again_under_the_same_ids_until_they_are_recorded() -> None:
    recorder = Recorder()
    recorder.failures, recorder.forgets_answer = 2, True
    trail = AuditTrail("test", recorder, lambda: 7)
    running = asyncio.create_task(trail.run())
    trail.record(AuditAction.SERVER_DRAINED, details={"server": "s1"})
    await until(lambda: len(recorder.recorded) == 3, "it is told a third time")
    running.cancel()
    assert len({event.id for event in recorder.recorded}) == 1
    assert recorder.recorded[0].process == "test"
    assert recorder.recorded[0].time == 7


async def test_the_end_of_a_process_tells_what_is_counted_without_waiting_for_the_span() -> None:
    recorder = Recorder()
    trail = AuditTrail("test", recorder, lambda: 7)
    refusals = (
        NotAllowedError(action="write", subject="kv a", reason="r", missing="write"),
        BusyError(what="x"),
        NotFoundError(what="store", name="x"),
    )
    for _ in range(3):
        for error in refusals:
            note_refusal(trail, "acme", "t" * 16, error)
    await trail.finish(1.0)
    [event] = recorder.recorded
    assert (event.count, event.last_time) == (3, 7)
    assert (event.outcome, event.tenant, event.store) == (AuditOutcome.REFUSED, "acme", "kv a")
    assert event.details == {"asked": "write kv a", "missing": "write"}


async def test_what_nobody_records_is_told_to_the_log_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorder = Recorder()
    recorder.failures = 100
    trail = AuditTrail("test", recorder, lambda: 7)
    trail.record(AuditAction.SERVER_DRAINED)
    with caplog.at_level(logging.WARNING, "holdfast.audit"):
        await trail.finish(1.0)
    assert "audit.unsent count=1" in caplog.text


async def test_who_is_about_to_end_waits_until_all_is_told_but_not_for_ever() -> None:
    recorder = Recorder()
    recorder.failures = 1
    trail = AuditTrail("test", recorder, lambda: 7)
    await trail.catch_up(1.0)
    trail.record(AuditAction.SERVER_DRAINED)
    trail.record(AuditAction.SERVER_DRAINED)
    assert trail.undelivered_count == 2
    running = asyncio.create_task(trail.run())
    await trail.catch_up(30.0)
    assert (trail.undelivered_count, len(recorder.recorded)) == (0, 2)
    recorder.failures = 100
    trail.record(AuditAction.SERVER_DRAINED)
    await trail.catch_up(0.05)
    assert trail.undelivered_count == 1
    running.cancel()


async def test_an_idle_trail_sleeps() -> None:
    timers: list[object] = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    before = len(timers)
    trail = AuditTrail("test", Recorder(), lambda: 7)
    running = asyncio.create_task(trail.run())
    await asyncio.sleep(0)
    assert len(timers) == before
    running.cancel()


async def test_servers_that_have_not_started_yet_are_no_trouble(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seconds, is_told in ((trouble.START_SECONDS, False), (0.1, True)):
        monkeypatch.setattr(trouble, "START_SECONDS", seconds)
        recorder = Recorder()
        recorder.failures = 2
        trail = AuditTrail("test", recorder, lambda: 7)
        with caplog.at_level(logging.WARNING, "holdfast.audit"):
            running = asyncio.create_task(trail.run())
            trail.record(AuditAction.SERVER_DRAINED)
            await until(lambda found=recorder: len(found.recorded) == 1, "it is told")
            running.cancel()
        assert ("audit.undelivered events=1" in caplog.text) is is_told

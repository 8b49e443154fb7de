"""Events on their way to the audit log: counted, bounded, kept until they are recorded."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from holdfast.protocol.access.audit_event import (
    AuditAction,
    AuditEvent,
    AuditOutcome,
    new_event_id,
    shown,
    shown_store,
)
from holdfast.protocol.access.audit_ledger import (
    ALLOWED_BUDGET,
    BATCH_EVENTS,
    FIRST_SPAN_SECONDS,
    LONGEST_SPAN_SECONDS,
    MAX_PATIENT,
    MAX_QUEUED,
    REFUSED_BUDGET,
    AuditLedger,
)
from holdfast.protocol.errors import MalformedFrameError
from holdfast.protocol.limits import MAX_AUDIT_EVENT_BYTES, MAX_AUDIT_TEXT

DRAINED = AuditEvent("1", 1, AuditAction.SERVER_DRAINED, AuditOutcome.DONE, "coordinator", "h")
LET_IN = replace(DRAINED, action=AuditAction.LOGIN, token="t" * 32, tenant="acme")
REFUSED = replace(LET_IN, action=AuditAction.REQUEST, outcome=AuditOutcome.REFUSED, reason="no")


class Ledger(AuditLedger):
    """A ledger whose records are numbered."""

    def __init__(self) -> None:
        numbers = itertools.count(1)
        lost = replace(DRAINED, id="lost", action=AuditAction.EVENTS_LOST)
        super().__init__(lambda n: replace(lost, count=n), lambda event: f"r{next(numbers)}")

    def all(self, now: float) -> list[AuditEvent]:
        """Record everything that is due."""
        found: list[AuditEvent] = []
        while batch := self.take(now):
            found += batch
            self.recorded(len(batch))
        return found


def test_what_an_operator_does_is_one_record_each_and_stays_until_it_is_recorded() -> None:
    ledger = Ledger()
    events = [replace(DRAINED, id=str(number)) for number in range(BATCH_EVENTS + 1)]
    for event in events:
        ledger.add(event)
    assert ledger.take(0.0) == ledger.take(1.0) == events[:BATCH_EVENTS]
    ledger.recorded(BATCH_EVENTS)
    assert ledger.take(1.0) == events[BATCH_EVENTS:]
    ledger.recorded(1)
    assert not ledger.take(1.0)


def test_events_alike_become_one_record_with_a_count_at_the_end_of_a_span() -> None:
    ledger = Ledger()
    for number in range(1000):
        ledger.note(replace(REFUSED, id=str(number), time=number, store=f"stream {number}"), 0.0)
    ledger.note(replace(REFUSED, reason="other"), 0.0)
    assert ledger.next_due_at() == FIRST_SPAN_SECONDS
    assert not ledger.take(FIRST_SPAN_SECONDS - 0.01)
    first, second = ledger.all(FIRST_SPAN_SECONDS)
    assert (first.count, first.time, first.last_time, first.id) == (1000, 0, 999, "r1")
    assert (second.count, second.reason, second.id) == (1, "other", "r2")
    assert ledger.next_due_at() == math.inf


def test_what_goes_on_is_recorded_at_growing_intervals_and_starts_over_after_a_pause() -> None:
    ledger = Ledger()
    counts: list[int] = []
    at: list[float] = []
    for now in range(4 * int(LONGEST_SPAN_SECONDS)):
        ledger.note(REFUSED, now)
        for record in ledger.all(now):
            counts.append(record.count)
            at.append(now)
    # A span begins with its first event.
    assert at[:5] == [2, 7, 16, 33, 66]
    assert counts[:5] == [3, 5, 9, 17, 33]
    assert max(b - a for a, b in itertools.pairwise(at)) == LONGEST_SPAN_SECONDS + 1
    later = 10 * LONGEST_SPAN_SECONDS
    ledger.all(later)
    later += 2 * LONGEST_SPAN_SECONDS
    ledger.note(REFUSED, later)
    assert ledger.next_due_at() == later + FIRST_SPAN_SECONDS


@pytest.mark.parametrize(("event", "budget"), [(REFUSED, REFUSED_BUDGET), (LET_IN, ALLOWED_BUDGET)])
def test_made_up_tokens_and_reasons_do_not_flood_the_log_and_all_are_counted(
    event: AuditEvent, budget: tuple[int, float]
) -> None:
    ledger = Ledger()
    most, per_second = budget
    noted = recorded = records = 0
    for now in range(0, 600, 5):
        for number in range(25):
            token = f"{now}-{number}"
            ledger.note(replace(event, token=token, reason=f"{number % 7}", store="kv x"), now)
            noted += 1
        for record in ledger.all(now):
            records += 1
            recorded += record.count
    ledger.close_spans()
    recorded += sum(record.count for record in ledger.all(1e6))
    assert recorded == noted == 3000
    assert records <= 2 * (most + 600 * per_second) + 20


def test_each_store_that_is_destroyed_has_a_record_within_the_budget() -> None:
    ledger = Ledger()
    for number in range(50):
        destroyed = replace(LET_IN, action=AuditAction.STORE_DESTROYED, store=f"kv {number}")
        ledger.note(destroyed, 0.0)
    assert {record.store for record in ledger.all(10.0)} == {f"kv {n}" for n in range(50)}


def test_beyond_the_budget_of_reasons_a_token_is_still_named() -> None:
    ledger = Ledger()
    for number in range(REFUSED_BUDGET[0] + 30):
        ledger.note(replace(REFUSED, reason=str(number)), 0.0)
    *_, rest = ledger.all(10.0)
    assert (rest.count, rest.token, rest.reason) == (30, REFUSED.token, "")


def test_what_does_not_fit_is_counted_and_the_count_is_recorded() -> None:
    ledger = Ledger()
    for number in range(MAX_QUEUED + 7):
        ledger.add(replace(DRAINED, id=str(number)))
    assert ledger.lost_count == 7
    ledger.take(0.0)
    assert ledger.lost_count == 7
    ledger.recorded(1)
    found = ledger.all(0.0)
    assert len(found) == MAX_QUEUED
    assert (found[-1].action, found[-1].count) == (AuditAction.EVENTS_LOST, 7)
    assert ledger.lost_count == 0


def test_patient_events_wait_for_the_first_deed_and_come_before_it() -> None:
    ledger = Ledger()
    started = replace(DRAINED, id="s", action=AuditAction.COORDINATOR_STARTED)
    ledger.add(started, patient=True)
    assert not ledger.take(1e9)
    assert ledger.next_due_at() == math.inf
    ledger.add(DRAINED)
    assert ledger.all(0.0) == [started, DRAINED]
    ledger.add(started, patient=True)
    assert ledger.all(0.0) == [started]


def test_patient_events_go_once_there_is_a_log_and_are_bounded_before() -> None:
    ledger = Ledger()
    for number in range(MAX_PATIENT + 3):
        ledger.add(replace(DRAINED, id=str(number)), patient=True)
    ledger.flow()
    found = ledger.all(0.0)
    assert [found[0].id, found[-2].id] == ["3", str(MAX_PATIENT + 2)]
    assert (found[-1].action, found[-1].count) == (AuditAction.EVENTS_LOST, 3)


def test_an_event_is_the_same_after_its_way_over_the_wire() -> None:
    event = replace(REFUSED, details={"asked": "write stream notes"}, count=3, last_time=9)
    assert AuditEvent.from_wire(event.to_wire()) == event
    assert AuditEvent.from_wire({**event.to_wire(), "from a later version": 1}) == event
    assert len({new_event_id(7) for _ in range(100)}) == 100
    assert new_event_id(7) < new_event_id(8)


@pytest.mark.parametrize(
    "change",
    [
        {"id": ""},
        {"id": 7},
        {"time": "now"},
        {"time": -1},
        {"count": True},
        {"reason": "x" * (MAX_AUDIT_TEXT + 1)},
        {"details": []},
        {"details": {"a": b"bytes"}},
        {"details": {"a": "x" * MAX_AUDIT_EVENT_BYTES}},
        {"details": {str(number): 1 for number in range(17)}},
    ],
)
def test_what_is_no_event_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(MalformedFrameError):
        AuditEvent.from_wire({**REFUSED.to_wire(), **change})
    for nonsense in (None, [], "x", {}, {"id": "x"}):
        with pytest.raises(MalformedFrameError):
            AuditEvent.from_wire(nonsense)


def test_texts_of_peers_are_shown_on_one_line_and_cut_short() -> None:
    assert shown("plain") == "plain"
    assert shown("a\nb\x1b[31m\u202e") == r"a\nb\x1b[31m\u202e"
    assert len(shown("x" * 1000)) == MAX_AUDIT_TEXT
    assert shown_store(2, "settings") == "kv settings"
    assert shown_store(9, "x") == "9 x"

"""Events that wait for the recorder as objects."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.protocol.access.audit_event import AuditAction, AuditEvent, AuditOutcome
from holdfast.protocol.errors import BusyError, StoreDamagedError
from holdfast.shared_fs.access import audit_outbox
from holdfast.shared_fs.access.audit_outbox import AuditOutbox
from holdfast.shared_fs.bucket.bucket import open_bucket

EVENT = AuditEvent("01", 1, AuditAction.TOKEN_CREATED, AuditOutcome.DONE, "holdfast", "h")


@pytest.fixture(params=["folder", "bucket"])
def outboxes(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[AuditOutbox, AuditOutbox]:
    """The outbox as one process puts, and as another one takes."""
    if request.param == "folder":
        return AuditOutbox(None, tmp_path / "audit"), AuditOutbox(None, tmp_path / "audit")
    bucket = open_bucket(tmp_path.as_uri())
    return AuditOutbox(bucket), AuditOutbox(bucket)


def test_events_wait_in_order_until_they_are_removed(
    outboxes: tuple[AuditOutbox, AuditOutbox], tmp_path: Path
) -> None:
    putting, taking = outboxes
    assert list(taking.waiting()) == []
    assert not (tmp_path / "audit").exists()
    for number in ("03", "01", "02"):
        putting.put([replace(EVENT, id=number), replace(EVENT, id=f"{number}-b")])
    keys = list(taking.waiting())
    ids = [event.id for key in keys for event in taking.events(key)]
    assert ids == ["01", "01-b", "02", "02-b", "03", "03-b"]
    taking.remove(keys[0])
    assert list(taking.waiting()) == keys[1:]


def test_the_outbox_is_private_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outbox = AuditOutbox(None, tmp_path / "audit")
    monkeypatch.setattr(audit_outbox, "MAX_WAITING", 2)
    for number in range(2):
        outbox.put([replace(EVENT, id=str(number))])
    with pytest.raises(BusyError):
        outbox.put([EVENT])
    assert (tmp_path / "audit").stat().st_mode & 0o077 == 0


def test_what_is_no_event_is_reported_by_its_key(tmp_path: Path) -> None:
    bucket = open_bucket(tmp_path.as_uri())
    outbox = AuditOutbox(bucket)
    for number, body in enumerate((b"", b"{", b"[1]", b'[{"id": ""}]', b"[" * 10_000)):
        bucket.put_new(f"audit/events/{number}", body)
    keys = list(outbox.waiting())
    assert len(keys) == 5
    for key in keys:
        with pytest.raises(StoreDamagedError, match=key):
            outbox.events(key)

"""Groups of a frame against the grant that came with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.persist.access.frame_access import FrameAccess
from holdfast.persist.access.token_meter import TokenMeters
from holdfast.persist.jobs.administration import Administrator, BucketJobs, ErasingJobs
from holdfast.persist.jobs.forking import ForkJobs
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.write_path.incoming import Incoming, take_apart
from holdfast.protocol import frames
from holdfast.protocol.access.audit_event import AuditAction, AuditOutcome
from holdfast.protocol.access.grants import KnownRights, TokenGrant
from holdfast.protocol.access.rights import Right
from holdfast.protocol.access.tokens import Token, TokenLimits
from holdfast.protocol.errors import NotAllowedError, RateLimitedError
from holdfast.protocol.limits import MAX_AUDIT_TEXT
from holdfast.protocol.names import StoreId
from holdfast.protocol.serving.audit_trail import NoAudit
from holdfast.shared_fs.disk.layout import Layout
from tests.support.tokens import a_token
from tests.support.write_path_parts import a_life

APPEND = [frames.APPEND, b"x"]
UNKNOWN = frames.FIRST_READ - 1


class Noted(NoAudit):
    """An audit log that keeps what is noted."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def note(self, action: AuditAction, outcome: AuditOutcome, **fields: Any) -> None:
        self.events.append({"action": action, "outcome": outcome, **fields})


class Sender:
    """Sends frames with one token."""

    def __init__(self, token: Token) -> None:
        self.grant = TokenGrant(token, KnownRights(), 0.0)
        self.meters = TokenMeters()
        self.now_ms = 0
        self.audit = Noted()

    def access(self) -> FrameAccess:
        meter = self.meters.of(self.grant)
        return FrameAccess(self.grant, meter, lambda: self.now_ms, self.audit)

    def send(self, *groups: Any) -> Incoming:
        payload = frames.encode_request(b"w", groups)
        return take_apart("acme", payload, "reply", OpenStores(), self.access())


def appends(name: str, count: int = 1) -> tuple[Any, ...]:
    return (1, name, 1, 1, 0, [APPEND] * count)


def test_a_group_is_refused_alone() -> None:
    sender = Sender(a_token(Right.WRITE, ["project.42.*"]))
    head = (1, "project.42.notes", 0, 0, 0, [[frames.HEAD]])
    incoming = sender.send(appends("project.42.notes"), appends("project.43.notes"), head)
    assert [each.position for each in incoming.arrivals] == [0]
    [(one, not_matched), (two, no_read)] = incoming.refusals
    assert (one, two) == (1, 2)
    assert isinstance(not_matched, NotAllowedError)
    assert isinstance(no_read, NotAllowedError)
    assert (not_matched.missing, no_read.missing) == ("write", "read")


def test_a_group_of_many_operations_needs_the_rights_of_all() -> None:
    sender = Sender(a_token(Right.WRITE, ["kv:a", "stream:b"]))
    trim, configure = [frames.TRIM, 1], [frames.CONFIGURE, {}]
    for _ in range(2):  # The second time the rights are known.
        incoming = sender.send(
            (1, "b", 1, 1, 0, [APPEND, trim, APPEND]),
            (1, "b", 1, 1, 0, [APPEND, configure]),
            (1, "b", 1, 1, 0, [[frames.BATCH, [APPEND, APPEND]]]),
            (1, "b", 1, 1, 0, [[frames.BATCH, [configure]]]),
            (1, "b", 1, 1, 0, [APPEND, [UNKNOWN]]),
            (2, "b", 1, 1, 0, [APPEND]),
            (2, "a", 1, 1, 0, [APPEND]),
        )
        assert UNKNOWN not in frames.OPERATION_NAMES
        assert [each.position for each in incoming.arrivals] == [0, 2, 6]
        assert [type(wrong) for _, wrong in incoming.refusals] == [NotAllowedError] * 4


def test_the_writer_of_a_frame_is_bound_to_the_holder() -> None:
    sender = Sender(a_token())
    [arrival] = sender.send(appends("notes")).arrivals
    assert arrival.writer == sender.grant.bound_writer(b"w") != b"w"
    [arrival] = take_apart(
        "acme", frames.encode_request(b"w", [appends("notes")]), "reply", OpenStores()
    ).arrivals
    assert arrival.writer == b"w", "an open cluster leaves it as it is"


def test_a_token_with_a_rate_is_limited_on_this_server() -> None:
    sender = Sender(a_token(limits=TokenLimits(rate=10)))
    assert len(sender.send(appends("a", 6), appends("b", 4), appends("c")).arrivals) == 2
    [(_, refused)] = sender.send(appends("a")).refusals
    assert isinstance(refused, RateLimitedError)
    assert (refused.what, refused.limit) == ("the token's rate", 10)
    assert refused.retry_after_seconds == pytest.approx(0.1)
    sender.now_ms += 100
    assert sender.send(appends("a")).arrivals


def test_the_operations_of_a_batch_count() -> None:
    sender = Sender(a_token(limits=TokenLimits(rate=10)))
    batch = (1, "a", 1, 1, 0, [[frames.BATCH, [APPEND] * 9]])
    assert sender.send(batch).arrivals
    assert sender.send(appends("a", 2)).refusals


def test_a_token_with_a_rate_of_bytes_is_limited() -> None:
    sender = Sender(a_token(limits=TokenLimits(bytes_per_second=10_000, rate=1_000)))
    large = (1, "a", 1, 1, 0, [[frames.APPEND, bytes(9_000)]])
    assert sender.send(large).arrivals
    [(_, refused)] = sender.send(large).refusals
    assert isinstance(refused, RateLimitedError)
    assert refused.what == "the token's bytes_per_second"


def test_a_refused_group_uses_up_no_rate() -> None:
    sender = Sender(a_token(Right.WRITE, ["mine"], limits=TokenLimits(rate=1)))
    assert sender.send(appends("others")).refusals
    assert sender.send(appends("mine")).arrivals


def test_a_token_without_limits_has_no_meter() -> None:
    assert Sender(a_token(limits=TokenLimits(connections=1))).access().meter is None


def test_a_job_needs_its_right() -> None:
    store = StoreId("acme", 1, "notes")
    Sender(a_token(Right.DESTROY)).access().check(Right.DESTROY, store)
    with pytest.raises(NotAllowedError) as refused:
        Sender(a_token(Right.WRITE)).access().check(Right.DESTROY, store)
    assert refused.value.missing == "destroy"


def test_the_audit_log_has_who_configured_a_store_and_how_and_no_other_operation() -> None:
    sender = Sender(a_token())
    settings = {"max_messages": 9, "nonsense": b"x" * 1000}
    configure = [frames.CONFIGURE, settings]
    for _ in range(2):  # The second time the rights are known.
        incoming = sender.send((1, "notes", 1, 1, 0, [APPEND, configure]), appends("notes"))
        assert len(incoming.arrivals) == 2
    event, again = sender.audit.events
    assert event == again
    assert (event["action"], event["outcome"]) == ("store.configured", "allowed")
    assert (event["token"], event["tenant"]) == (sender.grant.id, "acme")
    assert event["store"] == "stream notes"
    assert event["details"]["max_messages"] == "9"
    assert len(event["details"]["nonsense"]) <= MAX_AUDIT_TEXT
    refused = Sender(a_token(Right.WRITE))
    assert refused.send((1, "notes", 1, 1, 0, [configure])).refusals
    assert refused.audit.events == []


async def test_a_fork_needs_to_read_the_parent_and_to_write_the_fork() -> None:
    nothing: Any = None
    forks = ForkJobs(a_life(Layout(Path("/nowhere"))), *[nothing] * 7)
    erasing = ErasingJobs(nothing, nothing, nothing)
    server = Administrator("a", nothing, BucketJobs(None, forks), erasing)

    def missing(rights: Right, stores: list[str], *, prepares: bool = False) -> str:
        """Return the right that is missing; nothing if the job begins."""
        fields: dict[str, Any] = {"job": f"{rights} {stores} {prepares}", "parent": [1, "notes"]}
        if not prepares:
            fields |= {"store": [1, "trial.1"], "request": "r"}
        access = Sender(a_token(rights, stores)).access()
        try:
            reply = server.fork("acme", frames.encode_control(**fields), access)
            assert frames.decode_control(reply) == {"done": False}
        except NotAllowedError as error:
            return str(error.missing)
        return ""

    both = Right.READ | Right.WRITE
    assert missing(both, ["notes", "trial.*"]) == ""
    assert missing(both, ["notes"]) == "write"
    assert missing(both, ["trial.*"]) == "read"
    assert missing(Right.READ, ["notes", "trial.*"]) == "write"
    assert missing(Right.WRITE, ["notes", "trial.*"]) == "read"
    assert missing(Right.READ, ["notes"], prepares=True) == ""
    assert missing(both, ["trial.*"], prepares=True) == "read"
    await server.stop()

"""How the coordinator queues and answers requests, and which of two clusters' ones stays."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.coordinator.answering import inbox
from holdfast.coordinator.answering.inbox import Asked, RequestInbox
from holdfast.coordinator.answering.record_queue import RecordQueue
from holdfast.coordinator.answering.replies import Replies
from holdfast.coordinator.answering.requests import ListServers
from holdfast.coordinator.answering.waiting_replies import WaitingReplies
from holdfast.coordinator.decisions.events import FenceWritten, Registered, Suspected
from holdfast.coordinator.decisions.membership import Membership
from holdfast.coordinator.peers.other_clusters import CLEAR_LEAD_SECONDS, OtherClusters
from holdfast.coordinator.wakeup import Wakeup
from holdfast.protocol.bus.bus import BusMessage
from holdfast.protocol.errors import (
    BusyError,
    FencedError,
    HoldfastError,
    OtherClusterError,
    StorageFailedError,
    UnavailableError,
    UnknownOperationError,
)
from holdfast.protocol.frames import decode_control, encode_control
from holdfast.protocol.monitoring.counting import Statistics
from holdfast.protocol.monitoring.description import PartKind
from holdfast.protocol.serving.mishaps import Mishaps
from holdfast.protocol.subjects import Subjects

SUBJECTS = Subjects()
A1, A2 = ("a", "a1"), ("a", "a2")


class Answering:
    """The queues of a coordinator without its loop."""

    def __init__(self) -> None:
        bus: Any = SimpleNamespace(max_payload_bytes=1 << 20)
        mishaps, wakeup = Mishaps(logging.getLogger("holdfast.test")), Wakeup()
        statistics = Statistics(PartKind.COORDINATOR, "c1", 0)
        self.replies = Replies(bus, "c1", mishaps, wakeup, statistics)
        self.waiting = WaitingReplies(self.replies, 7, lambda: 1000)
        self.inbox = RequestInbox(SUBJECTS, "c1", self.waiting, self.replies, mishaps, wakeup)

    def ask(self, verb: str) -> None:
        subject = SUBJECTS.coordinator("acme", verb)
        self.inbox.on_message(BusMessage(subject, encode_control(), f"_INBOX.acme.{verb}"))

    def answers(self) -> dict[str, object]:
        """Return what was answered since the last call, to whom; errors by their classes."""
        found: dict[str, object] = {}
        for reply_to, payload in self.replies._packed:
            try:
                found[reply_to] = dict(decode_control(payload))
            except HoldfastError as error:
                found[reply_to] = type(error)
        self.replies._packed.clear()
        return found


@pytest.fixture
def answering() -> Answering:
    return Answering()


def test_beyond_its_bounds_the_coordinator_says_busy(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(inbox, "MAX_WAITING_REQUESTS", 0)
        answering.ask("servers")
    assert answering.answers() == {"_INBOX.acme.servers": BusyError}
    assert not answering.inbox
    answering.ask("servers")
    assert answering.inbox.take() == [Asked(ListServers(), "_INBOX.acme.servers")]
    assert answering.answers() == {}


def test_a_request_that_makes_no_sense_is_refused_when_it_is_taken(answering: Answering) -> None:
    answering.ask("nonsense")
    answering.ask("servers")
    assert answering.inbox.take() == [Asked(ListServers(), "_INBOX.acme.servers")]
    assert answering.answers() == {"_INBOX.acme.nonsense": UnknownOperationError}


def test_a_reply_that_cannot_be_packed_fails_alone(answering: Answering) -> None:
    answering.replies.add("r", {"number": 1 << 70})
    with pytest.raises(HoldfastError, match="OverflowError"):
        decode_control(answering.replies._packed.popleft()[1])


def test_who_registers_is_answered_once_recorded_and_the_next_life_once_this_one_is_fenced(
    answering: Answering,
) -> None:
    membership, waiting = Membership(), answering.waiting
    waiting.register(*A1, "first")
    membership.handle(Registered(*A1), 0.0)
    waiting.settle(membership, {A1})
    assert answering.answers() == {}, "it is not recorded yet"
    waiting.settle(membership, set())
    roles = ["persist", "tier", "archive", "cache"]
    accepted = {"cluster": "c1", "term": 7, "time": 1000, "roles": roles}
    assert answering.answers() == {"first": accepted}
    waiting.register(*A2, "second")
    membership.handle(Registered(*A2), 0.0)
    waiting.register("a", "a3", "third")
    waiting.settle(membership, set())
    assert answering.answers() == {"third": UnavailableError}, "one incarnation joins at a time"
    membership.handle(FenceWritten(*A1), 0.0)
    waiting.register(*A1, "late")
    waiting.settle(membership, set())
    assert answering.answers() == {"second": accepted, "late": FencedError}
    assert len(waiting) == 0


def test_who_suspects_hears_when_the_doubt_is_over_or_that_nothing_could_be_fenced(
    answering: Answering,
) -> None:
    membership, waiting = Membership(), answering.waiting
    membership.handle(Registered(*A1), 0.0)
    waiting.suspect(*A1, "client")
    membership.handle(Suspected(*A1), 0.0)
    waiting.settle(membership, set())
    assert answering.answers() == {}, "a probe is under way"
    waiting.register(*A2, "next life")
    waiting.fence_failed(*A1, StorageFailedError(reason="gone"))
    assert answering.answers() == {"client": StorageFailedError, "next life": StorageFailedError}
    waiting.suspect("b", "b1", "client")
    waiting.settle(membership, set())
    assert answering.answers() == {"client": {"cluster": "c1", "alive": False}}


def test_a_state_file_that_takes_no_writes_for_long_does_not_flood_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    records = RecordQueue(Wakeup())
    for _ in range(1000):
        records.settle([], StorageFailedError(reason="no room"), 1.0)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("coordinator.record_failed reason=")
    records.settle([], None, 2.0)
    assert caplog.messages[1].startswith("trouble.over event=coordinator.record_failed count=1000")


@pytest.mark.parametrize(
    ("cluster", "active_seconds", "leaves"),
    [
        pytest.param("m", 100.0, False, id="the same cluster"),
        pytest.param("a", 0.0, False, id="a standby"),
        pytest.param("a", 50.0 - CLEAR_LEAD_SECONDS, False, id="a later one"),
        pytest.param("z", 50.0 + CLEAR_LEAD_SECONDS, True, id="an earlier one"),
        pytest.param("a", 50.0, True, id="at the same time, of a lower id"),
        pytest.param("z", 50.0, False, id="at the same time, of a higher id"),
        pytest.param(None, 100.0, False, id="of no cluster"),
    ],
)
def test_of_two_clusters_coordinators_that_meet_one_makes_room(
    cluster: object, active_seconds: float, leaves: bool
) -> None:
    life = SimpleNamespace(
        subjects=SUBJECTS, storage=SimpleNamespace(layout=SimpleNamespace(root=Path("/data")))
    )
    error = OtherClusters(cast(Any, life), "m").rival(cluster, active_seconds, 50.0)
    assert isinstance(error, OtherClusterError) == leaves

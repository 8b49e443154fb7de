"""Zones: their names, and how a request carries one."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.persist.zone_traffic import ANOTHER, SAME, UNTOLD, ZoneTraffic
from holdfast.protocol.control import Heartbeat
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.monitoring.counting import Statistics
from holdfast.protocol.monitoring.description import PartKind
from holdfast.protocol.subjects import Subjects
from holdfast.protocol.work.zones import (
    ZONE_VARIABLE,
    check_zone,
    inbox_in,
    own_zone,
    zone_of_reply,
)


@pytest.mark.parametrize("zone", ["a.b", "*", "a b", "z=1", "x" * 64, "-a", "é"])
def test_a_zone_that_would_break_a_subject_is_refused(
    zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidArgumentError):
        check_zone(zone)
    monkeypatch.setenv(ZONE_VARIABLE, zone)
    with pytest.raises(InvalidArgumentError, match=ZONE_VARIABLE):
        own_zone(None)
    with pytest.raises(InvalidArgumentError):
        Heartbeat.from_wire({"server": "a", "incarnation": "a1", "zone": zone})


@pytest.mark.parametrize("zone", [7, [], b"a"])
def test_a_heartbeat_whose_zone_is_no_text_is_refused(zone: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        Heartbeat.from_wire({"server": "a", "incarnation": "a1", "zone": zone})


def test_what_connect_is_given_counts_before_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ZONE_VARIABLE, "b")
    assert (own_zone("a"), own_zone(""), own_zone(None)) == ("a", "", "b")
    monkeypatch.delenv(ZONE_VARIABLE)
    assert own_zone(None) == ""


def test_a_reply_subject_tells_the_zone_and_remains_an_inbox_of_its_tenant() -> None:
    subjects = Subjects()
    inbox = inbox_in("_INBOX.acme.x1", "us-east-1a")
    reply = f"{inbox}.17"
    assert zone_of_reply(reply) == "us-east-1a"
    assert subjects.may_answer(subjects.server("acme", "s1"), reply)
    assert not subjects.may_answer(subjects.server("other", "s1"), reply)
    assert inbox_in("_INBOX.acme.x1", "") == "_INBOX.acme.x1"
    for other in ("_INBOX.acme.x1.17", "17", "", "z=a", "z=a.17.18", "_INBOX.acme.z=.1"):
        assert zone_of_reply(other) == ""


def test_bytes_are_counted_by_where_the_client_is_with_few_labels_whatever_it_says() -> None:
    statistics = Statistics(PartKind.PERSIST, "s1", 0)
    traffic = ZoneTraffic("a", statistics)
    for zone, size_bytes in (("a", 10), ("b", 20), ("c", 30), ("", 40)):
        traffic.request(f"{inbox_in('_INBOX.acme.x', zone)}.1", size_bytes)
        traffic.reply(f"{inbox_in('_INBOX.acme.x', zone)}.1", 2 * size_bytes)
    found = {
        (sample.name, sample.labels[0][1]): sample.value
        for sample in statistics.samples()
        if sample.name in (metrics.REQUEST_BYTES.name, metrics.REPLY_BYTES.name)
    }
    expected = {SAME: 10, ANOTHER: 50, UNTOLD: 40}
    assert found == {
        **{(metrics.REQUEST_BYTES.name, place): count for place, count in expected.items()},
        **{(metrics.REPLY_BYTES.name, place): 2 * count for place, count in expected.items()},
    }


def test_a_server_without_a_zone_counts_nothing() -> None:
    statistics = Statistics(PartKind.PERSIST, "s1", 0)
    before = statistics.samples()
    ZoneTraffic("", statistics).request("_INBOX.acme.z=a.1", 10)
    assert statistics.samples() == before

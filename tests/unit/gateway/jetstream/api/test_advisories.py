"""Advisories have the subjects, types and fields that clients read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.gateway.jetstream.api.advisories import Advisories, Advisory, BatchAbandonReason

MADE = Advisories()
HEAD = {"id": "e1", "timestamp": "2026-11-22T01:02:03.456Z"}
NOW_MS = 1_795_309_323_456
OF = ("e1", NOW_MS, "S")
OF_CONSUMER = (*OF, "C")
IDS = {"stream": "S", "consumer": "C"}
DELIVERY = {"consumer_seq": 3, "stream_seq": 2, "deliveries": 1}


@pytest.mark.parametrize(
    ("advisory", "subject", "kind", "fields"),
    [
        (
            MADE.stream_created(*OF),
            "STREAM.CREATED.S",
            "stream_action",
            {"stream": "S", "action": "create"},
        ),
        (
            MADE.stream_updated(*OF),
            "STREAM.UPDATED.S",
            "stream_action",
            {"stream": "S", "action": "modify"},
        ),
        (
            MADE.stream_deleted(*OF),
            "STREAM.DELETED.S",
            "stream_action",
            {"stream": "S", "action": "delete"},
        ),
        (
            MADE.consumer_created(*OF_CONSUMER),
            "CONSUMER.CREATED.S.C",
            "consumer_action",
            IDS | {"action": "create"},
        ),
        (
            MADE.consumer_deleted(*OF_CONSUMER),
            "CONSUMER.DELETED.S.C",
            "consumer_action",
            IDS | {"action": "delete"},
        ),
        (
            MADE.consumer_paused(*OF_CONSUMER, (NOW_MS + 1) * 1_000_000),
            "CONSUMER.PAUSE.S.C",
            "consumer_pause",
            IDS | {"paused": True, "pause_until": "2026-11-22T01:02:03.457Z"},
        ),
        (
            MADE.consumer_paused(*OF_CONSUMER, None),
            "CONSUMER.PAUSE.S.C",
            "consumer_pause",
            IDS | {"paused": False, "pause_until": "0001-01-01T00:00:00Z"},
        ),
        (
            MADE.max_deliveries(*OF_CONSUMER, stream_seq=2, deliveries=5),
            "CONSUMER.MAX_DELIVERIES.S.C",
            "max_deliver",
            IDS | {"stream_seq": 2, "deliveries": 5},
        ),
        (MADE.naked(*OF_CONSUMER, (3, 2, 1)), "CONSUMER.MSG_NAKED.S.C", "nak", IDS | DELIVERY),
        (
            MADE.terminated(*OF_CONSUMER, (3, 2, 1)),
            "CONSUMER.MSG_TERMINATED.S.C",
            "terminated",
            IDS | DELIVERY,
        ),
        (
            MADE.terminated(*OF_CONSUMER, (3, 2, 1), "why"),
            "CONSUMER.MSG_TERMINATED.S.C",
            "terminated",
            IDS | DELIVERY | {"reason": "why"},
        ),
        (
            MADE.pinned(*OF_CONSUMER, "g", "p"),
            "CONSUMER.PINNED.S.C",
            "consumer_group_pinned",
            IDS | {"group": "g", "pinned_id": "p"},
        ),
        (
            MADE.unpinned(*OF_CONSUMER, "g", "admin"),
            "CONSUMER.UNPINNED.S.C",
            "consumer_group_unpinned",
            IDS | {"group": "g", "reason": "admin"},
        ),
        (
            MADE.batch_abandoned(*OF, "b", BatchAbandonReason.TIMEOUT),
            "STREAM.BATCH_ABANDONED.S",
            "stream_batch_abandoned",
            {"stream": "S", "batch": "b", "reason": "timeout"},
        ),
    ],
)
def test_an_advisory_has_a_subject_a_type_and_fields(
    advisory: Advisory, subject: str, kind: str, fields: dict[str, Any]
) -> None:
    assert advisory.subject == f"$JS.EVENT.ADVISORY.{subject}"
    expected = HEAD | fields | {"type": f"io.nats.jetstream.advisory.v1.{kind}"}
    assert json.loads(advisory.body) == expected


def test_a_domain_is_told() -> None:
    assert json.loads(Advisories("hub").stream_created(*OF).body)["domain"] == "hub"


def test_a_sampled_ack_is_a_metric() -> None:
    subject, body = MADE.ack_sampled(*OF_CONSUMER, (3, 2, 1), 500)
    assert subject == "$JS.EVENT.METRIC.CONSUMER.ACK.S.C"
    kind = {"type": "io.nats.jetstream.metric.v1.consumer_ack", "ack_time": 500}
    assert json.loads(body) == HEAD | IDS | DELIVERY | kind

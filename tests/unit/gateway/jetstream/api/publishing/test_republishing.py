"""What is stored is published again, with the headers that nats-server 2.15.1 adds."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.gateway.jetstream.api import headers
from holdfast.gateway.jetstream.api.checks.stream_checks import check_create
from holdfast.gateway.jetstream.api.publishing.republishing import Republisher
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig

TIME_MS = 1_795_309_323_456
ADDED = [
    ("Nats-Stream", "RP"),
    ("Nats-Subject", "rp1.a"),
    ("Nats-Sequence", "2"),
    ("Nats-Time-Stamp", "2026-11-22T01:02:03.456Z"),
    ("Nats-Last-Sequence", "1"),
]


def _republisher(republish: dict[str, Any] | None) -> Republisher:
    asked = {"name": "RP", "subjects": ["rp1.>"], "republish": republish}
    return Republisher(check_create(ApiStreamConfig.parse(asked)), ["hf.>"])


def test_a_message_is_published_to_its_mapped_subject() -> None:
    republisher = _republisher({"src": "rp1.>", "dest": "rp2.>"})
    assert republisher.is_used
    assert republisher.destination("rp1.a") == "rp2.a"
    block = headers.build([("X", "1")])
    made = republisher.made("rp2.a", (2, "rp1.a", TIME_MS, block, b"hello"), 1)
    assert made == ("rp2.a", headers.build([("X", "1"), *ADDED]), b"hello")


def test_headers_alone_say_how_large_the_payload_is() -> None:
    republisher = _republisher({"dest": "rp2.>", "headers_only": True})
    made = republisher.made("rp2.rp1.a", (2, "rp1.a", TIME_MS, b"", b"hello"), 1)
    assert made.block == headers.build([*ADDED, ("Nats-Msg-Size", "5")])
    assert made.payload == b""


@pytest.mark.parametrize("republish", [None, {"src": "rp1.a", "dest": ""}])
def test_a_stream_without_it_publishes_nothing(republish: dict[str, Any] | None) -> None:
    republisher = _republisher(republish)
    assert not republisher.is_used
    assert republisher.destination("rp1.a") is None


def test_no_message_reaches_a_reserved_subject() -> None:
    republisher = _republisher({"src": "rp1.*.*", "dest": "$1.$2"})
    assert republisher.destination("rp1.x.y") == "x.y"
    assert republisher.destination("rp1.hf.y") is None
    assert republisher.destination("rp1.x.*") is None
    assert republisher.destination("rp1.x") is None

"""Atomic batches, message by message: what waits, what is committed, what is refused."""

from __future__ import annotations

import pytest

from holdfast.gateway.jetstream.api.advisories import BatchAbandonReason
from holdfast.gateway.jetstream.api.headers import build
from holdfast.gateway.jetstream.api.publishing.publish_headers import MAX_BATCH_MESSAGES
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig
from holdfast.gateway.jetstream.publishing.atomic_batches import (
    BATCH_SILENCE_SECONDS,
    AtomicBatches,
    RefusedPart,
    WholeBatch,
)
from holdfast.gateway.jetstream.publishing.publish_load import PublishLoad
from holdfast.gateway.jetstream.publishing.publish_rules import PublishRules
from holdfast.gateway.jetstream.wire.ports import PortMessage
from holdfast.protocol.limits import (
    MAX_OPEN_BATCHES,
    MAX_STAGED_BATCH_BYTES,
    MAX_STAGED_PUBLISH_BYTES,
)

_CONFIG = {
    "name": "S",
    "subjects": ["s.>"],
    "allow_atomic": True,
    "allow_rollup_hdrs": True,
    "max_msg_size": -1,
}


def _rules(**more: object) -> PublishRules:
    return PublishRules(ApiStreamConfig.from_json({**_CONFIG, **more}), lambda: 0)


_RULES = _rules()


def _message(
    batch: str, number: object, subject: str = "", payload: bytes = b"v", **more: str
) -> PortMessage:
    fields = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
    fields |= {name.replace("_", "-"): value for name, value in more.items()}
    return PortMessage(subject or f"s.{number}", "reply", build(fields), payload)


def _code(found: object) -> int:
    assert isinstance(found, RefusedPart), found
    return found.error.err_code


def test_a_batch_is_committed_whole_by_its_last_message() -> None:
    batches = AtomicBatches(PublishLoad())
    assert batches.receive(_message("b", 1), _RULES, 0.0) is None
    assert batches.receive(_message("other", 1), _RULES, 0.0) is None
    assert batches.receive(_message("b", 2), _RULES, 0.0) is None
    whole = batches.receive(_message("b", 3, Nats_Batch_Commit="1"), _RULES, 0.0)
    assert isinstance(whole, WholeBatch)
    assert [each.subject for each in whole.messages] == ["s.1", "s.2", "s.3"]
    assert b"Nats-Batch-Id: b" in whole.messages[0].headers
    # It is over: its id may be used again.
    assert batches.receive(_message("b", 1), _RULES, 0.0) is None


def test_a_message_that_only_ends_a_batch_is_not_stored() -> None:
    batches = AtomicBatches(PublishLoad())
    batches.receive(_message("b", 1), _RULES, 0.0)
    whole = batches.receive(_message("b", 2, Nats_Batch_Commit="eob"), _RULES, 0.0)
    assert isinstance(whole, WholeBatch)
    [only] = whole.messages
    assert only.subject == "s.1" and b"Nats-Batch-Commit: 1\r\n" in only.headers


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (_message("x" * 65, 1), 10179),
        (_message("b", ""), 10175),
        (_message("b", "one"), 10175),
        (_message("b", 2), 10176),
        (_message("b", MAX_BATCH_MESSAGES + 1), 10199),
        (_message("b", MAX_BATCH_MESSAGES + 1, Nats_Batch_Commit="eob"), 10176),
        (_message("b", 1, Nats_Batch_Commit="eob"), 10176),
        (_message("b", 1, Nats_Batch_Commit="2"), 10200),
        (_message("b", 1, Nats_Required_Api_Level="99"), 10185),
        (_message("b", 1, Nats_Batch_Commit="1", Nats_Expected_Last_Msg_Id="x"), 10177),
        (_message("b", 1, Nats_Batch_Commit="1", Nats_Expected_Stream="T"), 10060),
    ],
)
def test_a_message_that_begins_wrongly_is_refused_and_leaves_nothing(
    message: PortMessage, code: int
) -> None:
    batches = AtomicBatches(PublishLoad())
    assert _code(batches.receive(message, _RULES, 0.0)) == code
    assert batches.wake_at == float("inf")


def test_what_the_stream_does_not_allow_is_refused() -> None:
    batches = AtomicBatches(PublishLoad())
    message = _message("b", 1)
    assert _code(batches.receive(message, _rules(allow_atomic=False), 0.0)) == 10174
    assert _code(batches.receive(message, _rules(sealed=True), 0.0)) == 10109
    assert _code(batches.receive(message, _rules(max_msg_size=3), 0.0)) == 10054


def test_a_gap_ends_a_batch() -> None:
    batches = AtomicBatches(PublishLoad())
    batches.receive(_message("b", 1), _RULES, 0.0)
    found = batches.receive(_message("b", 3), _RULES, 0.0)
    assert _code(found) == 10176
    assert isinstance(found, RefusedPart)
    assert (found.batch_id, found.abandoned) == ("b", BatchAbandonReason.INCOMPLETE)
    assert _code(batches.receive(_message("b", 2), _RULES, 0.0)) == 10176


def test_a_silent_batch_is_abandoned() -> None:
    batches = AtomicBatches(PublishLoad())
    batches.receive(_message("a", 1), _RULES, 0.0)
    batches.receive(_message("b", 1), _RULES, 0.0)
    batches.receive(_message("b", 2), _RULES, 5.0)
    assert batches.wake_at == BATCH_SILENCE_SECONDS
    assert batches.expire(BATCH_SILENCE_SECONDS) == ["a"]
    assert batches.wake_at == 5.0 + BATCH_SILENCE_SECONDS


def test_batches_are_bounded_in_number_and_in_bytes() -> None:
    batches = AtomicBatches(PublishLoad())
    for number in range(MAX_OPEN_BATCHES):
        assert batches.receive(_message(str(number), 1), _RULES, 0.0) is None
    assert _code(batches.receive(_message("more", 1), _RULES, 0.0)) == 10210
    assert batches.receive(_message("1", 2), _RULES, 0.0) is None

    batches = AtomicBatches(PublishLoad())
    piece = bytes(1024 * 1024)
    for number in range(1, MAX_STAGED_BATCH_BYTES // len(piece)):
        assert batches.receive(_message("b", number, payload=piece), _RULES, 0.0) is None
    last = _message("b", MAX_STAGED_BATCH_BYTES // len(piece), payload=piece)
    found = batches.receive(last, _RULES, 0.0)
    assert isinstance(found, RefusedPart) and found.abandoned is BatchAbandonReason.LARGE
    # Its bytes are free again.
    assert batches.receive(_message("b", 1, payload=piece), _RULES, 0.0) is None


def test_the_batches_of_all_streams_share_the_memory_of_their_gateway() -> None:
    load = PublishLoad()
    piece = bytes(1024 * 1024)
    full: list[AtomicBatches] = []
    found: object = None
    while found is None:
        full.append(AtomicBatches(load))
        for number in range(1, MAX_STAGED_BATCH_BYTES // len(piece)):
            found = full[-1].receive(_message("b", number, payload=piece), _RULES, 0.0)
            if found is not None:
                break
    assert _code(found) == 10210
    assert len(full) > MAX_STAGED_PUBLISH_BYTES // MAX_STAGED_BATCH_BYTES
    # One that ends makes room for others, and so do all of a stream that is given up.
    assert full[0].expire(BATCH_SILENCE_SECONDS) == ["b"]
    assert AtomicBatches(load).receive(_message("b", 1, payload=piece), _RULES, 0.0) is None
    for batches in full:
        batches.clear()
    assert load.staged_bytes < 2 * len(piece)


@pytest.mark.parametrize(
    ("second", "code"),
    [
        ({"Nats_Msg_Id": "same"}, 10201),
        ({"Nats_Expected_Last_Sequence": "1"}, 10164),
        ({"Nats_Expected_Last_Subject_Sequence": "1"}, 10164),
        (
            {
                "Nats_Expected_Last_Subject_Sequence": "0",
                "Nats_Expected_Last_Subject_Sequence_Subject": "s.first",
            },
            10164,
        ),
        ({"Nats_Rollup": "sub"}, 10111),
        ({"Nats_Rollup": "all"}, 10111),
    ],
)
def test_what_would_mean_something_else_before_the_batch_is_refused(
    second: dict[str, str], code: int
) -> None:
    batches = AtomicBatches(PublishLoad())
    first = _message("b", 1, subject="s.first", Nats_Msg_Id="same")
    assert batches.receive(first, _RULES, 0.0) is None
    last = _message("b", 2, subject="s.first", Nats_Batch_Commit="1", **second)
    assert _code(batches.receive(last, _RULES, 0.0)) == code
    assert batches.wake_at == float("inf")

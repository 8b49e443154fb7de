"""What the subject of a request says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.gateway.jetstream.api.requests.verbs import ApiCall, ApiVerb, parse_call, subjects
from holdfast.gateway.jetstream.api.subject_lists import first_meeting
from holdfast.protocol.subject_filters import overlaps


@pytest.mark.parametrize(
    ("tail", "call"),
    [
        ("INFO", ApiCall(ApiVerb.INFO)),
        ("STREAM.NAMES", ApiCall(ApiVerb.STREAM_NAMES)),
        ("STREAM.CREATE.S", ApiCall(ApiVerb.STREAM_CREATE, "S")),
        ("STREAM.MSG.GET.S", ApiCall(ApiVerb.STREAM_MSG_GET, "S")),
        ("STREAM.LEADER.STEPDOWN.S", ApiCall(ApiVerb.STREAM_LEADER_STEPDOWN, "S")),
        ("CONSUMER.CREATE.S", ApiCall(ApiVerb.CONSUMER_CREATE, "S")),
        ("CONSUMER.CREATE.S.C", ApiCall(ApiVerb.CONSUMER_CREATE, "S", "C")),
        ("CONSUMER.CREATE.S.C.a.*.>", ApiCall(ApiVerb.CONSUMER_CREATE, "S", "C", "a.*.>")),
        ("CONSUMER.DURABLE.CREATE.S.C", ApiCall(ApiVerb.CONSUMER_DURABLE_CREATE, "S", "C")),
        ("CONSUMER.NAMES.S", ApiCall(ApiVerb.CONSUMER_NAMES, "S")),
        ("CONSUMER.PAUSE.S.C", ApiCall(ApiVerb.CONSUMER_PAUSE, "S", "C")),
        ("CONSUMER.MSG.NEXT.S.C", ApiCall(ApiVerb.CONSUMER_MSG_NEXT, "S", "C")),
        ("CONSUMER.CREATE.CREATE.CREATE", ApiCall(ApiVerb.CONSUMER_CREATE, "CREATE", "CREATE")),
        ("DIRECT.GET.S", ApiCall(ApiVerb.DIRECT_GET, "S")),
        ("DIRECT.GET.S.$KV.b.k", ApiCall(ApiVerb.DIRECT_GET, "S", "", "$KV.b.k")),
    ],
)
def test_a_subject_is_a_verb_and_names(tail: str, call: ApiCall) -> None:
    assert parse_call(tail) == call


@pytest.mark.parametrize(
    "tail",
    [
        *("", "INFO.S", "STREAM", "STREAM.CREATE", "STREAM.CREATE.S.T", "STREAM.CREATE.", "info"),
        *("CONSUMER.CREATE", "CONSUMER.INFO.S", "CONSUMER.INFO.S.C.D", "CONSUMER.CREATE.S..x"),
        *("DIRECT.GET", "DIRECT.GET.", "META.LEADER.STEPDOWN", "STREAM.TEMPLATE.CREATE.S", "...."),
    ],
)
def test_other_subjects_are_no_call(tail: str) -> None:
    assert parse_call(tail) is None


def test_what_is_subscribed_for_a_verb_is_what_it_is_called_by() -> None:
    for verb in ApiVerb:
        for subject in subjects(verb):
            tail = subject.replace("*", "X").replace(">", "x.y")
            call = parse_call(tail)
            assert call is not None and call.verb is verb, subject
    everything = [subject for verb in ApiVerb for subject in subjects(verb)]
    # CONSUMER.CREATE.> would hear every other creation too.
    assert first_meeting(everything, overlaps) is None


@given(st.text(alphabet="STREAMCONUINFO.CRGET*>x ", max_size=30))
def test_noise_is_no_call_or_a_call(noise: str) -> None:
    for start in ("", "STREAM.", "CONSUMER.CREATE.", "DIRECT.GET."):
        call = parse_call(start + noise)
        assert call is None or call.verb in ApiVerb

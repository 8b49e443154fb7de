"""docs/jetstream.md lists what the code has: verbs, fields, defaults, headers, advisories."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from holdfast.gateway.jetstream.api import limits
from holdfast.gateway.jetstream.api.advisories import Advisories, Advisory, BatchAbandonReason
from holdfast.gateway.jetstream.api.checks.consumer_checks import complete
from holdfast.gateway.jetstream.api.checks.stream_checks import check_create
from holdfast.gateway.jetstream.api.consumer_config import ApiConsumerConfig
from holdfast.gateway.jetstream.api.publishing import publish_headers, schedules
from holdfast.gateway.jetstream.api.requests import message_requests
from holdfast.gateway.jetstream.api.requests.pull_requests import PullRequest
from holdfast.gateway.jetstream.api.requests.verbs import OF_CLUSTERS, ApiVerb
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig
from tests.support.documents import read, table

PAGE = read("jetstream.md")


def _defaults(names: tuple[str, ...], echo: Mapping[str, Any], **words: str) -> dict[str, str]:
    plain = {name: json.dumps(echo[name]) if name in echo else "left out" for name in names}
    return {
        name: words.get(name) or (f"`{text[1:-1]}`" if text.startswith('"') else text)
        for name, text in plain.items()
    }


def test_every_verb_is_listed_and_those_that_are_refused() -> None:
    rows = {row[0]: row[1] for row in table(PAGE, "verb", "answer")}
    assert list(rows) == [each.value for each in ApiVerb]
    for verb in OF_CLUSTERS:
        assert rows[verb] == "refused, 10010"
    assert f"above {limits.API_LEVEL} is refused" in PAGE
    assert f"The level of the API is {limits.API_LEVEL}," in PAGE


def test_every_field_of_a_stream_is_listed_with_its_default() -> None:
    echo = check_create(ApiStreamConfig(name="S")).to_json()
    names = ApiStreamConfig.__slots__
    expected = _defaults(names, echo, name="none", subjects="the name")
    assert {row[0]: row[1] for row in table(PAGE, "stream's field")} == expected
    assert not [row for row in table(PAGE, "stream's field") if row[2] == "refused"]


def test_every_field_of_a_consumer_is_listed_with_its_default() -> None:
    config = ApiConsumerConfig.parse({"durable_name": "d", "ack_policy": "explicit"})
    echo = complete(config, ApiStreamConfig(name="S")).to_json()
    names = ApiConsumerConfig.__slots__
    expected = _defaults(names, echo, ack_policy="`none`", durable_name="left out")
    assert {row[0]: row[1] for row in table(PAGE, "consumer's field")} == expected
    assert f"up to {limits.MAX_ACK_PENDING:,}" in PAGE


def test_every_field_of_gets_and_pulls_is_listed() -> None:
    fields = set(message_requests.GetMessage.__slots__)
    assert {row[0] for row in table(PAGE, "field of a get")} == fields
    assert {row[0] for row in table(PAGE, "field of a pull")} == set(PullRequest.__slots__)
    assert f"up to {limits.MAX_MULTI_LAST_SUBJECTS:,} subjects" in PAGE


def test_every_header_of_a_publish_is_listed() -> None:
    read_here = {
        name
        for module in (publish_headers, schedules)
        for value in vars(module).values()
        if isinstance(value, bytes)
        for name in re.findall(rb"^\r\n(Nats-[\w-]+):$", value)
    } | {b"Nats-" + value for value in vars(publish_headers).values() if type(value) is bytes}
    named = {name.decode() for name in read_here if re.fullmatch(rb"Nats-[A-Z][\w-]+", name)}
    listed = {row[0] for row in table(PAGE, "header")}
    assert listed - {"Nats-Required-Api-Level"} == named
    assert f"up to {publish_headers.MAX_BATCH_MESSAGES:,}" in PAGE
    assert f"1 to {publish_headers.MAX_BATCH_ID_LENGTH} characters" in PAGE


def test_every_advisory_is_listed() -> None:
    of, made = ("e", 1, "S"), Advisories()
    all_of_them: list[Advisory] = [
        made.stream_created(*of),
        made.stream_updated(*of),
        made.stream_deleted(*of),
        made.batch_abandoned(*of, "b", BatchAbandonReason.LARGE),
        made.consumer_created(*of, "C"),
        made.consumer_deleted(*of, "C"),
        made.consumer_paused(*of, "C", None),
        made.pinned(*of, "C", "g", "p"),
        made.unpinned(*of, "C", "g", "admin"),
        made.max_deliveries(*of, "C", stream_seq=1, deliveries=1),
        made.naked(*of, "C", (1, 1, 1)),
        made.terminated(*of, "C", (1, 1, 1)),
    ]
    subjects = [each.subject.removeprefix("$JS.EVENT.ADVISORY.") for each in all_of_them]
    section = PAGE.partition("\n## Advisories\n")[2].partition("\n## ")[0]
    listed = set(re.findall(r"`((?:STREAM|CONSUMER)\.\w+)`", section))
    assert listed == {".".join(subject.split(".")[:2]) for subject in subjects}

"""Which consumers want the messages of a subject."""

from __future__ import annotations

from typing import Any

from holdfast.gateway.jetstream.api.consumer_config import ApiConsumerConfig
from holdfast.gateway.jetstream.consumer_set.consumer_index import ConsumerIndex
from holdfast.gateway.jetstream.consumer_set.served_consumer import ServedConsumer
from holdfast.gateway.jetstream.consumers.backlog import Backlog
from holdfast.gateway.jetstream.consumers.consumer import ApiConsumer, ConsumerSurroundings
from holdfast.gateway.jetstream.consumers.deliveries import StreamView
from holdfast.gateway.jetstream.consumers.ledger import DeliveryLedger
from holdfast.gateway.jetstream.consumers.settings import DeliverySettings

_AROUND = ConsumerSurroundings("S", StreamView(1, 0), lambda inbox: True, lambda: "id")


def consumer(name: str, **config: Any) -> ServedConsumer:
    parsed = ApiConsumerConfig.parse(config)
    settings = DeliverySettings.of(parsed)
    core = ApiConsumer(name, settings, DeliveryLedger(1), Backlog(1, at_tail=True), _AROUND)
    return ServedConsumer(parsed, 0, core, None)


def names(index: ConsumerIndex, subject: str) -> set[str]:
    return {each.name for each in index.of(subject)}


def test_literal_filters_patterns_and_none() -> None:
    index = ConsumerIndex()
    index.add(consumer("all"))
    index.add(consumer("a", filter_subject="s.a"))
    index.add(consumer("any", filter_subject="s.*"))
    index.add(consumer("two", filter_subjects=["s.a", "t.>"]))
    assert names(index, "s.a") == {"all", "a", "any", "two"}
    assert names(index, "s.b") == {"all", "any"}
    assert names(index, "t.b.c") == {"all", "two"}
    # What was found is not kept over changes.
    index.remove("any")
    index.add(consumer("a", filter_subject="s.b"))
    assert names(index, "s.a") == {"all", "two"}
    assert names(index, "s.b") == {"all", "a"}


def test_whether_all_messages_of_a_stream_match() -> None:
    subjects = ("s.a", "t.>")
    for filters, expected in (
        ((), True),
        (("s.a",), False),
        (("s.*", "t.>"), True),
        ((">",), True),
        (("s.a", "t.*"), False),
    ):
        found = consumer("c", filter_subjects=list(filters))
        found.look_at(subjects)
        assert found.matches_all == expected

"""Advisories: what happens to streams and consumers, published for whoever listens.

Each function returns the subject and the body of one. They have no reply. `event_id` is any unique
text, `now_ms` the time; nothing here makes either.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any, Final, NamedTuple

from holdfast.gateway.jetstream.api.times import ZERO_TIME, format_ms, format_time

_SUBJECTS: Final = "$JS.EVENT.ADVISORY."
_TYPES: Final = "io.nats.jetstream.advisory.v1."
_METRIC_SUBJECTS: Final = "$JS.EVENT.METRIC."
_METRIC_TYPES: Final = "io.nats.jetstream.metric.v1."


class Advisory(NamedTuple):
    """One advisory, ready to publish."""

    subject: str
    body: bytes


class BatchAbandonReason(StrEnum):
    """Why an atomic batch ended without being stored."""

    TIMEOUT = "timeout"
    LARGE = "large"
    INCOMPLETE = "incomplete"
    UNSUPPORTED = "unsupported"


class Advisories:
    """The advisories of one gateway."""

    def __init__(self, domain: str = "") -> None:
        self._domain: Final = {"domain": domain} if domain else {}

    def stream_created(self, event_id: str, now_ms: int, stream: str) -> Advisory:
        return self._action(event_id, now_ms, "CREATED", "create", stream)

    def stream_updated(self, event_id: str, now_ms: int, stream: str) -> Advisory:
        return self._action(event_id, now_ms, "UPDATED", "modify", stream)

    def stream_deleted(self, event_id: str, now_ms: int, stream: str) -> Advisory:
        return self._action(event_id, now_ms, "DELETED", "delete", stream)

    def consumer_created(self, event_id: str, now_ms: int, stream: str, consumer: str) -> Advisory:
        return self._action(event_id, now_ms, "CREATED", "create", stream, consumer)

    def consumer_deleted(self, event_id: str, now_ms: int, stream: str, consumer: str) -> Advisory:
        return self._action(event_id, now_ms, "DELETED", "delete", stream, consumer)

    def consumer_paused(
        self, event_id: str, now_ms: int, stream: str, consumer: str, pause_until_ns: int | None
    ) -> Advisory:
        """Paused until then, or resumed: None."""
        until = ZERO_TIME if pause_until_ns is None else format_time(pause_until_ns)
        fields = {
            **_names(stream, consumer),
            "paused": pause_until_ns is not None and pause_until_ns > now_ms * 1_000_000,
            "pause_until": until,
        }
        subject = f"CONSUMER.PAUSE.{stream}.{consumer}"
        return self._made(event_id, now_ms, subject, "consumer_pause", fields)

    def max_deliveries(
        self,
        event_id: str,
        now_ms: int,
        stream: str,
        consumer: str,
        stream_seq: int,
        deliveries: int,
    ) -> Advisory:
        fields = {
            **_names(stream, consumer),
            "stream_seq": stream_seq,
            "deliveries": deliveries,
        }
        subject = f"CONSUMER.MAX_DELIVERIES.{stream}.{consumer}"
        return self._made(event_id, now_ms, subject, "max_deliver", fields)

    def naked(
        self, event_id: str, now_ms: int, stream: str, consumer: str, delivery: tuple[int, int, int]
    ) -> Advisory:
        """`delivery` is its consumer seq, stream seq and how often it was delivered."""
        subject = f"CONSUMER.MSG_NAKED.{stream}.{consumer}"
        fields = {**_names(stream, consumer), **_delivery(delivery)}
        return self._made(event_id, now_ms, subject, "nak", fields)

    def terminated(
        self,
        event_id: str,
        now_ms: int,
        stream: str,
        consumer: str,
        delivery: tuple[int, int, int],
        reason: str = "",
    ) -> Advisory:
        """`delivery` is its consumer seq, stream seq and how often it was delivered."""
        subject = f"CONSUMER.MSG_TERMINATED.{stream}.{consumer}"
        fields = {**_names(stream, consumer), **_delivery(delivery)}
        if reason:
            fields["reason"] = reason
        return self._made(event_id, now_ms, subject, "terminated", fields)

    def pinned(
        self, event_id: str, now_ms: int, stream: str, consumer: str, group: str, pin_id: str
    ) -> Advisory:
        fields = {**_names(stream, consumer), "group": group, "pinned_id": pin_id}
        subject = f"CONSUMER.PINNED.{stream}.{consumer}"
        return self._made(event_id, now_ms, subject, "consumer_group_pinned", fields)

    def unpinned(
        self, event_id: str, now_ms: int, stream: str, consumer: str, group: str, reason: str
    ) -> Advisory:
        """`reason` is `admin` for a request, `timeout` for a client that fell silent."""
        fields = {**_names(stream, consumer), "group": group, "reason": reason}
        subject = f"CONSUMER.UNPINNED.{stream}.{consumer}"
        return self._made(event_id, now_ms, subject, "consumer_group_unpinned", fields)

    def batch_abandoned(
        self, event_id: str, now_ms: int, stream: str, batch: str, reason: BatchAbandonReason
    ) -> Advisory:
        fields = {"stream": stream, "batch": batch, "reason": reason.value}
        subject = f"STREAM.BATCH_ABANDONED.{stream}"
        return self._made(event_id, now_ms, subject, "stream_batch_abandoned", fields)

    def ack_sampled(
        self,
        event_id: str,
        now_ms: int,
        stream: str,
        consumer: str,
        delivery: tuple[int, int, int],
        ack_time_ns: int,
    ) -> Advisory:
        """A metric, no advisory: how long an ack took, of consumers with `sample_freq`."""
        fields = {
            **_head(event_id, now_ms, f"{_METRIC_TYPES}consumer_ack"),
            **_names(stream, consumer),
            **_delivery(delivery),
            "ack_time": ack_time_ns,
            **self._domain,
        }
        return Advisory(f"{_METRIC_SUBJECTS}CONSUMER.ACK.{stream}.{consumer}", _encoded(fields))

    def _action(
        self, event_id: str, now_ms: int, what: str, action: str, stream: str, consumer: str = ""
    ) -> Advisory:
        if consumer:
            subject, kind = f"CONSUMER.{what}.{stream}.{consumer}", "consumer_action"
            fields = {**_names(stream, consumer), "action": action}
        else:
            subject, kind = f"STREAM.{what}.{stream}", "stream_action"
            fields = {"stream": stream, "action": action}
        return self._made(event_id, now_ms, subject, kind, fields)

    def _made(
        self, event_id: str, now_ms: int, subject: str, kind: str, fields: dict[str, Any]
    ) -> Advisory:
        body = {**_head(event_id, now_ms, f"{_TYPES}{kind}"), **fields, **self._domain}
        return Advisory(f"{_SUBJECTS}{subject}", _encoded(body))


def _head(event_id: str, now_ms: int, kind: str) -> dict[str, Any]:
    return {"type": kind, "id": event_id, "timestamp": format_ms(now_ms)}


def _names(stream: str, consumer: str) -> dict[str, Any]:
    return {"stream": stream, "consumer": consumer}


def _delivery(delivery: tuple[int, int, int]) -> dict[str, Any]:
    consumer_seq, stream_seq, deliveries = delivery
    return {"consumer_seq": consumer_seq, "stream_seq": stream_seq, "deliveries": deliveries}


def _encoded(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()

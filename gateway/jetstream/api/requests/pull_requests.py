"""Pull requests: what CONSUMER.MSG.NEXT and `+NXT` ask for.

Nearly all of them are one of a few texts, sent again and again, so parsed ones are kept.
Answers to a pull request are messages, so what is wrong with one is a StatusError.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from holdfast.gateway.jetstream.api import bodies
from holdfast.gateway.jetstream.api.consumer_config import ApiConsumerConfig, PriorityPolicy
from holdfast.gateway.jetstream.api.errors import ApiError
from holdfast.gateway.jetstream.api.headers import StatusError
from holdfast.gateway.jetstream.api.times import MILLISECOND, format_duration

_MAX_PRIORITY: Final = 9
#: Longer bodies are not kept, so the kept ones are 256 KiB at most.
_MAX_KEPT_BYTES: Final = 256
_KEPT: Final = 1024


@dataclass(frozen=True, slots=True)
class PullRequest:
    """One request. Durations are nanoseconds; 0 and "" are not set."""

    batch: int = 1
    #: 0 is until it is filled; below 0 it is over at once.
    expires: int = 0
    no_wait: bool = False
    max_bytes: int = 0
    idle_heartbeat: int = 0
    group: str = ""
    min_pending: int = 0
    min_ack_pending: int = 0
    #: The pin that the client was given.
    id: str = ""
    #: 0 is served first.
    priority: int = 0

    @property
    def expires_ms(self) -> int:
        """`expires` in milliseconds, at least one if there is any."""
        return -(-self.expires // MILLISECOND)

    @property
    def idle_heartbeat_ms(self) -> int:
        return -(-self.idle_heartbeat // MILLISECOND)

    @classmethod
    def parse(cls, body: bytes) -> PullRequest:
        """Nothing, a number, or JSON; another text is one message. Raises StatusError."""
        return _kept(body) if len(body) <= _MAX_KEPT_BYTES else _parsed(body)

    def check(self, config: ApiConsumerConfig) -> None:
        """Check what a consumer's configuration allows, in the server's order. Raises
        StatusError.

        Who is pinned, and how many requests wait, is for the consumer to check.
        """
        if config.is_push:
            raise StatusError(409, "Consumer is push based")
        if 0 < config.max_batch < self.batch:
            raise StatusError(409, f"Exceeded MaxRequestBatch of {config.max_batch}")
        if 0 < config.max_expires < self.expires:
            longest = format_duration(config.max_expires)
            raise StatusError(409, f"Exceeded MaxRequestExpires of {longest}")
        if 0 < config.max_bytes < self.max_bytes:
            raise StatusError(409, f"Exceeded MaxRequestMaxBytes of {config.max_bytes}")
        policy = config.priority_policy
        if (self.min_pending or self.min_ack_pending) and policy is not PriorityPolicy.OVERFLOW:
            raise _bad("Not a Overflow Priority consumer")
        if self.id and policy is not PriorityPolicy.PINNED_CLIENT:
            raise _bad("Not a Pinned Client Priority consumer")
        if not 0 <= self.priority <= _MAX_PRIORITY:
            raise _bad(f"Priority must be between 0 and {_MAX_PRIORITY}")
        if policy is not PriorityPolicy.NONE:
            if not self.group:
                raise _bad("Priority Group missing")
            if self.group not in config.priority_groups:
                raise _bad("Invalid Priority Group")


def _parsed(body: bytes) -> PullRequest:
    text = body.strip()
    if text[:1] != b"{":
        number = text[1:] if text[:1] in (b"-", b"+") else text
        if number.isdigit() and len(number) <= 18:
            return PullRequest(batch=max(int(text), 1))
        return PullRequest()
    try:
        fields = bodies.read(_SCHEMA, bodies.parse(text), strict=False)
    except ApiError as error:
        raise _bad(error.description.removeprefix("invalid JSON: ")) from None
    fields["batch"] = max(fields.get("batch", 1), 1)
    heartbeat = fields.get("idle_heartbeat", 0)
    if heartbeat > 0 and 2 * heartbeat > fields.get("expires", 0):
        raise _bad("heartbeat value too large")
    fields["idle_heartbeat"] = max(heartbeat, 0)
    return PullRequest(**fields)


_kept = lru_cache(_KEPT)(_parsed)


def _bad(text: str) -> StatusError:
    return StatusError(400, f"Bad Request - {text}")


_SCHEMA: Final[bodies.Schema] = {
    "batch": bodies.int64,
    "expires": bodies.int64,
    "no_wait": bodies.boolean,
    "max_bytes": bodies.int64,
    "idle_heartbeat": bodies.int64,
    "group": bodies.text,
    "min_pending": bodies.int64,
    "min_ack_pending": bodies.int64,
    "id": bodies.text,
    "priority": bodies.int64,
}

"""What deliveries need of a consumer's configuration, in the units that they use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from holdfast.gateway.jetstream.api.consumer_config import AckPolicy, ApiConsumerConfig
from holdfast.gateway.jetstream.api.limits import MAX_ACK_PENDING
from holdfast.gateway.jetstream.api.times import MILLISECOND

#: What a rate limit lets through at once: the largest message.
BURST_BYTES: Final = 1024 * 1024
#: A shorter ack_wait would keep a gateway busy with one client that does not answer.
_LEAST_WAIT_MS: Final = 10


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """One configuration. Times are int milliseconds; 0 is none."""

    config: ApiConsumerConfig
    acks: bool
    ack_all: bool
    #: Time until the first delivery is due again, the second, ...; the last is for all others too.
    waits_ms: tuple[int, ...]
    #: 0: without end.
    max_deliver: int
    max_pending: int
    heartbeat_ms: int
    inactive_ms: int
    pause_until_ms: int
    pin_timeout_ms: int

    @classmethod
    def of(cls, config: ApiConsumerConfig) -> Self:
        """Return the settings of a complete configuration."""
        limit = config.max_ack_pending
        return cls(
            config=config,
            acks=config.ack_policy is not AckPolicy.NONE,
            ack_all=config.ack_policy is AckPolicy.ALL,
            waits_ms=tuple(
                max(_LEAST_WAIT_MS, _ms(each)) for each in config.backoff or (config.ack_wait,)
            ),
            max_deliver=max(0, config.max_deliver),
            max_pending=min(limit, MAX_ACK_PENDING) if limit > 0 else MAX_ACK_PENDING,
            heartbeat_ms=_ms(config.idle_heartbeat),
            inactive_ms=_ms(config.inactive_threshold),
            pause_until_ms=_ms(config.pause_until or 0),
            pin_timeout_ms=_ms(config.priority_timeout),
        )

    def wait_ms(self, deliveries: int) -> int:
        """Return how long a client has for its `deliveries`-th delivery of a message."""
        waits = self.waits_ms
        return waits[deliveries - 1] if deliveries <= len(waits) else waits[-1]


def _ms(duration_ns: int) -> int:
    return -(-duration_ns // MILLISECOND)

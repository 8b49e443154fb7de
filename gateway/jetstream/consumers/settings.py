"""What deliveries need of a consumer's configuration, in the units that they use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from holdfast.gateway.jetstream.api.consumer_config import AckPolicy, ApiConsumerConfig
from holdfast.gateway.jetstream.api.limits import MAX_ACK_PENDING
from holdfast.gateway.jetstream.api.times import MILLISECOND

#: What a rate limit lets through at once: the largest message.
BURST_BYTES: Final = 1024 * 1024
#: Longer than any consumer lives.
_NO_WAIT_MS: Final = 1 << 52
#: A shorter ack_wait would keep a gateway busy with one client that does not answer.
_LEAST_WAIT_MS: Final = 10


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """One configuration. Times are int milliseconds; 0 is none."""

    config: ApiConsumerConfig
    acks: bool
    ack_all: bool
    #: What is acknowledged is said by answers to flow control, and nothing is delivered twice.
    acks_by_flow: bool
    #: Time until the first delivery is due again, the second, ...; the last is for all others too.
    waits_ms: tuple[int, ...]
    #: 0: without end.
    max_deliver: int
    max_pending: int
    heartbeat_ms: int
    inactive_ms: int
    pause_until_ms: int
    pin_timeout_ms: int
    #: Of so many acks in a hundred it is told how long they took.
    sample_percent: int

    @classmethod
    def of(cls, config: ApiConsumerConfig) -> Self:
        """Return the settings of a complete configuration."""
        limit = config.max_ack_pending
        by_flow = config.ack_policy is AckPolicy.FLOW_CONTROL
        waits_ms = tuple(
            max(_LEAST_WAIT_MS, _ms(each)) for each in config.backoff or (config.ack_wait,)
        )
        return cls(
            config=config,
            acks=config.ack_policy is not AckPolicy.NONE,
            ack_all=by_flow or config.ack_policy is AckPolicy.ALL,
            acks_by_flow=by_flow,
            waits_ms=(_NO_WAIT_MS,) if by_flow else waits_ms,
            max_deliver=max(0, config.max_deliver),
            max_pending=min(limit, MAX_ACK_PENDING) if limit > 0 else MAX_ACK_PENDING,
            heartbeat_ms=_ms(config.idle_heartbeat),
            inactive_ms=_ms(config.inactive_threshold),
            pause_until_ms=_ms(config.pause_until or 0),
            pin_timeout_ms=_ms(config.priority_timeout),
            sample_percent=_percent(config),
        )

    @property
    def takes_acks(self) -> bool:
        """Whether clients acknowledge deliveries one by one."""
        return self.acks and not self.acks_by_flow

    def wait_ms(self, deliveries: int) -> int:
        """Return how long a client has for its `deliveries`-th delivery of a message."""
        waits = self.waits_ms
        return waits[deliveries - 1] if deliveries <= len(waits) else waits[-1]


def _percent(config: ApiConsumerConfig) -> int:
    """Return how many acks in a hundred are sampled: as with nats-server, only those of consumers
    whose messages are acknowledged one by one."""
    if not config.sample_freq or config.ack_policy is not AckPolicy.EXPLICIT:
        return 0
    return min(100, int(config.sample_freq.removesuffix("%")))


def _ms(duration_ns: int) -> int:
    return -(-duration_ns // MILLISECOND)

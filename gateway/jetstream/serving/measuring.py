"""What the statistics of a JetStream gateway read of its parts."""

from __future__ import annotations

import time

from holdfast.gateway.jetstream.serving.gateway import JetStreamGateway
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.monitoring.consumer_lags import ConsumerLags
from holdfast.protocol.monitoring.counting import Statistics


def measure(gateway: JetStreamGateway, statistics: Statistics) -> None:
    """Let the statistics read a gateway. Nothing is counted up message by message, and consumers
    one by one only seldom."""
    load, streams, account = gateway.context.load, gateway.streams, gateway.account
    statistics.read(metrics.SERVED_STREAMS, lambda: len(streams))
    statistics.read(
        metrics.SERVED_CONSUMERS, lambda: sum(stream.consumer_count for stream in streams)
    )
    lags = ConsumerLags(
        lambda: (lag for stream in streams for lag in stream.consumer_lags()),
        lambda: int(time.monotonic() * 1000),
    )
    statistics.read(metrics.SERVED_CONSUMERS_LAG, lambda: lags.now().messages)
    statistics.read(metrics.SERVED_CONSUMERS_LAG_MAX, lambda: lags.now().longest)
    statistics.read(metrics.PUBLISHED, lambda: load.taken)
    statistics.read(metrics.PUBLISHED_BYTES, lambda: load.taken_bytes)
    statistics.read(metrics.UNANSWERED, lambda: load.count)
    statistics.read(metrics.API_REQUESTS, lambda: account.request_count)
    statistics.read(metrics.API_ERRORS, lambda: account.error_count)

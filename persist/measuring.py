"""What the statistics of a server read of its parts. Parts count themselves what happens often.

Everything is read in the event loop and is at hand: nothing is read from a disk. Only the lags of
consumers are counted up store by store, seldom: with 20,000 open stores in 2 ms.
"""

from __future__ import annotations

from holdfast.persist.parts import Parts
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.monitoring.bucket_numbers import read_bucket
from holdfast.protocol.monitoring.consumer_lags import ConsumerLags
from holdfast.protocol.monitoring.prices import Prices


def measure(parts: Parts, prices: Prices) -> None:
    """Let the statistics of a life read its parts."""
    statistics = parts.life.statistics
    pipeline, inbox, open_stores = parts.pipeline, parts.inbox, parts.open_stores
    statistics.read(metrics.OPERATIONS, lambda: pipeline.operation_count)
    statistics.read(metrics.LOG_SIZE, lambda: pipeline.log_bytes)
    statistics.read(metrics.LOG_PENDING, lambda: pipeline.unsynced_bytes)
    statistics.read(metrics.WAITING, lambda: inbox.room.taken)
    statistics.read(metrics.OPEN_STORES, lambda: open_stores.open_count)
    lags = ConsumerLags(
        lambda: (lag for store in open_stores.stores() for lag in store.consumer_lags()),
        parts.life.clock_ms,
    )
    statistics.read(metrics.CONSUMERS, lambda: lags.now().consumers)
    statistics.read(metrics.CONSUMERS_LAG, lambda: lags.now().messages)
    statistics.read(metrics.CONSUMERS_LAG_MAX, lambda: lags.now().longest)
    statistics.read(metrics.CLAIMS, lambda: parts.claims.count)
    tier = parts.tier
    if tier is not None:
        statistics.read(metrics.SNAPSHOT_BACKLOG, lambda: tier.backlog)
        statistics.read(metrics.SNAPSHOT_LAG, lambda: tier.snapshotter.backlog_seconds)
        statistics.read(metrics.SNAPSHOTS, lambda: tier.snapshotter.counts.snapshots)
        statistics.read(metrics.COOLED, lambda: tier.snapshotter.counts.cooled)
        read_bucket(statistics, tier.bucket.usage.total, prices)
        pace = parts.storage.log_pace
        statistics.read(metrics.FLUSH_INTERVAL, lambda: pace.interval_seconds)
    lag = parts.lag
    if lag is not None:
        statistics.read(metrics.BEHIND, lambda: lag.behind_count)
        statistics.read(metrics.OLDEST_UNEXPORTED, lambda: lag.oldest_seconds)
        statistics.read(metrics.LAG_BOUND, lambda: lag.bound_seconds)
    archiver = parts.archiver
    if archiver is not None:
        statistics.read(metrics.ARCHIVED, lambda: archiver.archived_count)
    budget = parts.budget
    if budget is not None:
        statistics.read(metrics.BUDGET, lambda: budget.dollars_per_day)
        statistics.read(metrics.BUDGET_LEFT, lambda: budget.left_ratio)

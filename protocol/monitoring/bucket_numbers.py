"""The numbers of a bucket's use, and what it costs, from the counters of its requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from holdfast.protocol.monitoring import metrics
from holdfast.protocol.monitoring.counting import Statistics
from holdfast.protocol.monitoring.prices import REQUEST_KINDS, Prices


class BucketCounts(Protocol):
    """Requests and bytes so far (`shared_fs/bucket/bucket_usage.py`)."""

    @property
    def put_count(self) -> int: ...
    @property
    def get_count(self) -> int: ...
    @property
    def head_count(self) -> int: ...
    @property
    def list_count(self) -> int: ...
    @property
    def delete_count(self) -> int: ...
    @property
    def failed_count(self) -> int: ...
    @property
    def sent_bytes(self) -> int: ...
    @property
    def received_bytes(self) -> int: ...


def requests_of(counts: BucketCounts) -> dict[str, float]:
    """Return the requests by kind."""
    return {kind: getattr(counts, f"{kind}_count") for kind in REQUEST_KINDS}


def dollars_of(counts: BucketCounts, prices: Prices) -> dict[str, float]:
    """Return what was spent, by the kind of request; `transfer` is what bytes cost beside that."""
    moved = prices.transfer(sent_bytes=counts.sent_bytes, received_bytes=counts.received_bytes)
    return prices.requests(requests_of(counts)) | {"transfer": moved}


def read_bucket(
    statistics: Statistics, counts: Callable[[], BucketCounts], prices: Prices
) -> None:
    """Let the statistics read the use of a bucket."""
    statistics.read_each(metrics.BUCKET_REQUESTS, lambda: requests_of(counts()))
    statistics.read_each(metrics.BUCKET_DOLLARS, lambda: dollars_of(counts(), prices))
    statistics.read(metrics.BUCKET_FAILURES, lambda: counts().failed_count)
    statistics.read(metrics.BUCKET_SENT, lambda: counts().sent_bytes)
    statistics.read(metrics.BUCKET_RECEIVED, lambda: counts().received_bytes)

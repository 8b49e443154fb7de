"""What a metric is: its name, kind, unit, labels, and the parts that have it.

Names follow Prometheus: a base unit at the end, `_total` for counters, one quantity for each name.
No label is per store, tenant or client: a cluster has millions of those. The buckets of a name
never change; other buckets need another name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

#: What all names begin with, where they meet those of other programs. It is not on our wire.
NAMESPACE: Final = "holdfast"


class MetricKind(StrEnum):
    """How a number behaves."""

    #: Only grows, from 0 at the start of its part.
    COUNTER = "counter"
    GAUGE = "gauge"
    #: How many observations fell into each bucket, and their sum.
    HISTOGRAM = "histogram"


class PartKind(StrEnum):
    """The kinds of processes of a cluster."""

    COORDINATOR = "coordinator"
    #: A coordinator that waits to become the active one.
    STANDBY = "standby"
    PERSIST = "persist"
    GATEWAY_HTTP = "gateway_http"
    GATEWAY_JETSTREAM = "gateway_jetstream"
    AUTH = "auth"


GATEWAYS: Final = frozenset([PartKind.GATEWAY_HTTP, PartKind.GATEWAY_JETSTREAM])

#: Upper ends of buckets. Latencies from a quarter of a millisecond, below a quick sync, to 10 s,
#: when clients give up.
SECONDS: Final = (
    0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)
#: Pauses and jobs, from 10 ms to five minutes.
LONG_SECONDS: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
#: Numbers of things, in powers of four.
COUNTS: Final = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0)


@dataclass(frozen=True, slots=True)
class Description:
    """One metric."""

    #: Without the namespace.
    name: str
    kind: MetricKind
    help: str
    #: The parts that have it.
    parts: frozenset[PartKind]
    #: The names of its labels, in order.
    labels: tuple[str, ...] = ()
    #: The upper ends of a histogram's buckets; one more, for what is above, follows them.
    buckets: tuple[float, ...] = ()

    @property
    def full_name(self) -> str:
        """The name in Prometheus."""
        return f"{NAMESPACE}_{self.name}"

    @property
    def unit(self) -> str:
        """`seconds`, `bytes`, `dollars`, or nothing for plain numbers."""
        stem = self.name.removesuffix("_total")
        found = stem.rpartition("_")[2]
        return found if found in _UNITS else ""


_UNITS: Final = ("seconds", "bytes", "dollars")

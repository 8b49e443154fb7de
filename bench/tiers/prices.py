"""The monthly cost of a bucket's requests and bytes, at the default prices of
`protocol/monitoring/prices.py`: those of Amazon S3. Pure.

Transfer within the region is free. For other prices, use the counts beside the dollars.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from holdfast.protocol.monitoring.prices import S3_PRICES, per_month

_PUT_DOLLARS: Final = S3_PRICES.request("put")
_GET_DOLLARS: Final = S3_PRICES.request("get")


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests by their price class: a LIST or a part of an upload counts as a put, a HEAD as
    a get."""

    puts: float = 0
    gets: float = 0
    deletes: float = 0

    def __add__(self, other: Requests) -> Requests:
        return Requests(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, earlier: Requests) -> Requests:
        """Return the requests after `earlier`."""
        return Requests(*(getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)))

    @property
    def dollars(self) -> float:
        return self.puts * _PUT_DOLLARS + self.gets * _GET_DOLLARS


def requests_dollars_per_month(requests: Requests, seconds: float) -> float:
    """Return the cost of a month with this rate: these requests within `seconds`."""
    return per_month(requests.dollars, seconds)


def storage_dollars_per_month(size_bytes: float) -> float:
    """Return the cost of storing `size_bytes` for a month."""
    return S3_PRICES.storage_per_month(size_bytes)

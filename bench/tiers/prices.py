"""The monthly cost of a bucket's requests and bytes, at the prices of Amazon S3. Pure.

The prices are those of S3 Standard in us-east-1 in 2025 (https://aws.amazon.com/s3/pricing/),
without the free tier: $0.005 for 1,000 PUT, COPY, POST or LIST requests, $0.0004 for 1,000 GET,
HEAD and other requests, nothing for DELETE, and $0.023 for a GiB stored for a month (the first 50
TB). Transfer within the region is free. For other prices, use the counts beside the dollars.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

PUT_DOLLARS: Final = 0.005 / 1000
GET_DOLLARS: Final = 0.0004 / 1000
GIB_MONTH_DOLLARS: Final = 0.023
#: The length of a mean month.
MONTH_SECONDS: Final = 365.25 * 86_400 / 12
_GIB: Final = 1 << 30


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
        return self.puts * PUT_DOLLARS + self.gets * GET_DOLLARS


def requests_dollars_per_month(requests: Requests, seconds: float) -> float:
    """Return the cost of a month with this rate: these requests within `seconds`."""
    return requests.dollars / seconds * MONTH_SECONDS


def storage_dollars_per_month(size_bytes: float) -> float:
    """Return the cost of storing `size_bytes` for a month."""
    return size_bytes / _GIB * GIB_MONTH_DOLLARS

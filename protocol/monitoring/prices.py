"""What a bucket's requests and bytes cost: a table of prices, and the dollars of counts. Pure.

The default prices are those of Amazon S3 Standard in us-east-1 in 2025
(https://aws.amazon.com/s3/pricing/), without the free tier: $0.005 for 1,000 PUT, COPY, POST or
LIST requests, $0.0004 for 1,000 GET, HEAD and other requests, nothing for DELETE, and $0.023 for a
GiB stored for a month (the first 50 TB). Transfer within the region is free; beyond it is not.

An operator's table is a JSON object; what it leaves out has the default price:

    {"currency": "USD", "per_1000": {"put": 0.005, "get": 0.0004}, "gib_month": 0.023,
     "gib_sent": 0, "gib_received": 0}
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.protocol.errors import InvalidArgumentError

#: Kinds of requests, by the words of `shared_fs/bucket/bucket_usage.py`.
REQUEST_KINDS: Final = ("put", "get", "head", "list", "delete")
#: The length of a mean month.
MONTH_SECONDS: Final = 365.25 * 86_400 / 12
DAY_SECONDS: Final = 86_400.0
_GIB: Final = 1 << 30
_MAX_PRICE: Final = 1e6
#: A table of prices is a few lines.
MAX_TABLE_BYTES: Final = 16_384


def _s3_standard() -> dict[str, float]:
    return {"put": 0.005, "get": 0.0004, "head": 0.0004, "list": 0.005, "delete": 0.0}


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a bucket, in dollars, or whatever `currency` says."""

    #: Of a thousand requests, by kind.
    per_1000: Mapping[str, float] = field(default_factory=_s3_standard)
    #: Of a GiB stored for a month; and of one put into the bucket, or read from it.
    gib_month: float = 0.023
    gib_sent: float = 0.0
    gib_received: float = 0.0
    currency: str = "USD"

    def request(self, kind: str) -> float:
        """Return the price of one request."""
        return self.per_1000[kind] / 1000

    def requests(self, counts: Mapping[str, float]) -> dict[str, float]:
        """Return what requests cost, by kind. Kinds without a price are left out."""
        return {
            kind: count * self.per_1000[kind] / 1000
            for kind, count in counts.items()
            if kind in self.per_1000
        }

    def transfer(self, *, sent_bytes: float = 0, received_bytes: float = 0) -> float:
        """Return what moving bytes costs, in addition to the requests."""
        return (sent_bytes * self.gib_sent + received_bytes * self.gib_received) / _GIB

    def storage_per_month(self, size_bytes: float) -> float:
        """Return the cost of storing `size_bytes` for a month."""
        return size_bytes / _GIB * self.gib_month


#: Amazon S3 Standard.
S3_PRICES: Final = Prices()


def per_month(dollars: float, seconds: float) -> float:
    """Return what a month costs at the rate of `dollars` in `seconds`; 0 for no time."""
    return dollars / seconds * MONTH_SECONDS if seconds > 0 else 0.0


def per_day(dollars: float, seconds: float) -> float:
    """Return what a day costs at the rate of `dollars` in `seconds`; 0 for no time."""
    return dollars / seconds * DAY_SECONDS if seconds > 0 else 0.0


def parse_prices(text: str | bytes) -> Prices:
    """Return the table that a file holds. Raises InvalidArgumentError."""
    if len(text) > MAX_TABLE_BYTES:
        raise _wrong(f"it is longer than {MAX_TABLE_BYTES} bytes")
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _wrong(f"it is not JSON: {error}") from error
    if type(fields) is not dict:
        raise _wrong("it must be a JSON object")
    known = {"currency", "per_1000", "gib_month", "gib_sent", "gib_received"}
    if not fields.keys() <= known:
        raise _wrong(f"it may have {', '.join(sorted(known))}")
    requests = fields.get("per_1000", {})
    if type(requests) is not dict or not requests.keys() <= set(REQUEST_KINDS):
        raise _wrong(f"`per_1000` must have prices of {', '.join(REQUEST_KINDS)}")
    currency = fields.get("currency", "USD")
    if type(currency) is not str or not currency.isalpha() or len(currency) > 8:
        raise _wrong("`currency` must be a code such as EUR")
    default = S3_PRICES
    return Prices(
        _s3_standard() | {kind: _price(kind, price) for kind, price in requests.items()},
        _price("gib_month", fields.get("gib_month", default.gib_month)),
        _price("gib_sent", fields.get("gib_sent", default.gib_sent)),
        _price("gib_received", fields.get("gib_received", default.gib_received)),
        currency,
    )


def _price(name: str, value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or not 0 <= value <= _MAX_PRICE:
        raise _wrong(f"{name} must be a number from 0 on")
    return float(value)


def _wrong(reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(argument="prices", reason=reason)

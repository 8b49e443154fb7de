"""How fast the holders of tokens go: operations and bytes a second, on this server.

Pure; `now` is monotonic milliseconds. Rates live in memory, for as many tokens as a server knows
grants. A token without limits has no meter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.persist.store.retention import TokenBucket
from holdfast.protocol.access.grants import TokenGrant
from holdfast.protocol.access.tokens import TokenLimits
from holdfast.protocol.errors import RateLimitedError
from holdfast.protocol.frames import BATCH
from holdfast.protocol.limits import MAX_KNOWN_GRANTS


class _Rate(NamedTuple):
    what: str
    limit: int
    bucket: TokenBucket

    @classmethod
    def of(cls, what: str, limit: int | None) -> _Rate | None:
        return None if limit is None else cls(what, limit, TokenBucket(limit))


class TokenMeter:
    """The rates of one token."""

    def __init__(self, limits: TokenLimits) -> None:
        self._rate = _Rate.of("the token's rate", limits.rate)
        self._byte_rate = _Rate.of("the token's bytes_per_second", limits.bytes_per_second)

    def take(
        self, now_ms: int, operations: Sequence[Sequence[Any]], size_bytes: int
    ) -> RateLimitedError | None:
        """Take a group from the rates. If it returns an error, nothing was taken."""
        wanted = ((self._rate, _count(operations)), (self._byte_rate, size_bytes))
        for rate, amount in wanted:
            if rate is not None and (wait_seconds := rate.bucket.wait_seconds(now_ms, amount)) > 0:
                return RateLimitedError(
                    what=rate.what,
                    limit=rate.limit,
                    retry_after_seconds=round(wait_seconds, 3) or 0.001,
                )
        for rate, amount in wanted:
            if rate is not None:
                rate.bucket.take(amount)
        return None


class TokenMeters:
    """The meters of the tokens that have limits."""

    def __init__(self) -> None:
        self._meters: dict[str, TokenMeter] = {}

    def of(self, grant: TokenGrant) -> TokenMeter | None:
        """Return the meter of a grant, or None if its token has no limits."""
        limits = grant.token.limits
        if limits.rate is None and limits.bytes_per_second is None:
            return None
        meter = self._meters.get(grant.id)
        if meter is None:
            if len(self._meters) >= MAX_KNOWN_GRANTS:
                del self._meters[next(iter(self._meters))]
            meter = self._meters[grant.id] = TokenMeter(limits)
        return meter


def _count(operations: Sequence[Sequence[Any]]) -> int:
    """Return the number of operations; a batch counts as those in it."""
    count = len(operations)
    for operation in operations:
        if operation[0] == BATCH and len(operation) > 1 and type(operation[1]) is list:
            count += len(operation[1]) - 1
    return count

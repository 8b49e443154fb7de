"""What JetStream calls the account: its limits, what its streams use, and requests counted."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.gateway.jetstream.api.limits import AccountLimits
from holdfast.gateway.jetstream.api.replies import AccountInfo
from holdfast.gateway.jetstream.catalogue.catalogue import Catalogue


class AccountUsage(NamedTuple):
    """What streams use together: bytes of those in memory and of all others, and consumers."""

    memory: int = 0
    storage: int = 0
    consumers: int = 0

    def plus(self, other: AccountUsage) -> AccountUsage:
        """Return the sum."""
        return AccountUsage(*map(sum, zip(self, other, strict=True)))


class Account:
    """The account that one gateway serves."""

    def __init__(self, limits: AccountLimits, domain: str) -> None:
        self.limits = limits
        self._domain = domain
        #: Requests of the API, and those that were answered with an error.
        self.request_count = 0
        self.error_count = 0

    def asked(self) -> None:
        """Count a request."""
        self.request_count += 1

    def refused(self) -> None:
        """Count one that was answered with an error."""
        self.error_count += 1

    def info(self, catalogue: Catalogue, usage: AccountUsage) -> AccountInfo:
        """Return what INFO tells."""
        return AccountInfo(
            memory=usage.memory,
            storage=usage.storage,
            reserved_memory=catalogue.reserved_bytes(in_memory=True),
            reserved_storage=catalogue.reserved_bytes(in_memory=False),
            streams=catalogue.live_count,
            consumers=usage.consumers,
            limits=self.limits,
            api_total=self.request_count,
            api_errors=self.error_count,
            domain=self._domain,
        )

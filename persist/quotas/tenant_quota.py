"""The quota of one tenant, as one server keeps it.

Pure; `now` is monotonic seconds. Rates are token buckets, each with this server's share of the
tenant's rate. The bytes are those that the coordinator last told for the whole cluster, and what
the tenant has added here since. A tenant at its limit may still delete, trim, read and configure.
Open stores and uploads are those of this server, and what the coordinator last told of others.

A group is refused as a whole or not at all for its rate, and then uses up nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from heapq import nsmallest
from typing import Any, Final, NamedTuple

from holdfast.persist.store.retention import NEVER, TokenBucket
from holdfast.persist.store.states import OpenState
from holdfast.persist.store.store import Store
from holdfast.protocol import frames
from holdfast.protocol.access.quota import Quota
from holdfast.protocol.errors import LimitExceededError, RateLimitedError
from holdfast.protocol.names import StoreId

#: Operations that may make a store larger.
_ADDING: Final = frozenset({frames.APPEND, frames.SET_MESSAGE, frames.SET_ENTRY, frames.PUT_CHUNK})


class TenantQuota:
    """What one tenant has used here, and what it may use."""

    __slots__ = (
        "_added_bytes",
        "_byte_rate",
        "_rate",
        "_reported_bytes",
        "_shares",
        "_told_bytes",
        "elsewhere",
        "idle_rounds",
        "open",
        "opening",
        "operation_count",
        "quota",
        "size_bytes",
        "tenant",
        "touched",
        "uploads",
    )

    def __init__(self, tenant: str, quota: Quota) -> None:
        self.tenant = tenant
        self.quota = quota
        #: The stores whose size may differ from what the coordinator knows.
        self.touched: dict[Store, None] = {}
        #: What was asked for since the last report, whether it was refused or not.
        self.operation_count = self.size_bytes = 0
        #: Its open stores, and those that are being opened.
        self.open: dict[StoreId, Store] = {}
        self.opening: set[StoreId] = set()
        #: The unfinished uploads of open stores that have some, if they are limited.
        self.uploads: dict[StoreId, int] = {}
        #: What other servers hold of it: open stores, and uploads.
        self.elsewhere = (0, 0)
        #: In how many reports it had nothing to say.
        self.idle_rounds = 0
        self._told_bytes = 0
        #: Added since the last report was made, and before it since the last answer.
        self._added_bytes = self._reported_bytes = 0
        #: Of the rates, between 0 and 1.
        self._shares = (1.0, 1.0)
        self._rate: TokenBucket | None = None
        self._byte_rate: TokenBucket | None = None
        self._set_rates()

    def becomes(self, quota: Quota) -> None:
        """Apply a changed quota."""
        self.quota = quota
        self._set_rates()

    @property
    def used_bytes(self) -> int:
        """The bytes of the tenant in the whole cluster, as far as this server knows."""
        return self._told_bytes + self._reported_bytes + self._added_bytes

    @property
    def is_full(self) -> bool:
        """True if the tenant may not add bytes."""
        limit = self.quota.max_bytes
        return limit is not None and self.used_bytes >= limit

    # Before a group is executed
    def rate_refusal(
        self, operations: Sequence[Sequence[Any]], size_bytes: int, now: float
    ) -> RateLimitedError | None:
        """Take a group from the rates, or return why it must wait. `size_bytes` is 0 for reads."""
        count = sum(map(_count, operations))
        self.operation_count += count
        self.size_bytes += size_bytes
        now_ms = int(now * 1000)
        wanted = (
            (self._rate, "max_rate", count),
            (self._byte_rate, "max_bytes_per_second", size_bytes),
        )
        for bucket, what, amount in wanted:
            if bucket is None or not amount:
                continue
            wait_seconds = bucket.wait_seconds(now_ms, amount)
            if wait_seconds > 0:
                return RateLimitedError(
                    what=_of_tenant(what),
                    limit=getattr(self.quota, what),
                    retry_after_seconds=round(wait_seconds, 3) or 0.001,
                )
        for bucket, _, amount in wanted:
            if bucket is not None:
                bucket.take(amount)
        return None

    def refused(self, store: Store, size_bytes: int) -> RefusedOperations | None:
        """Return which operations on a store the tenant may not do now, or None. They would add
        `size_bytes`."""
        if self.is_full:
            return RefusedOperations(
                adds,
                LimitExceededError(
                    what=_of_tenant("max_bytes"),
                    limit=self.quota.max_bytes,
                    value=self.used_bytes + size_bytes,
                ),
            )
        limit = self.quota.max_uploads
        if limit is not None and (count := self.upload_count + self.elsewhere[1]) >= limit:
            error = LimitExceededError(what=_of_tenant("max_uploads"), limit=limit, value=count + 1)
            return RefusedOperations(partial(_begins_upload, store), error)
        return None

    def take_room(self, size_bytes: int) -> None:
        """Count the bytes of a store that is made whole. Raises LimitExceededError if they are too
        many."""
        limit, value = self.quota.max_bytes, self.used_bytes + size_bytes
        if limit is None:
            return
        if value > limit:
            raise LimitExceededError(what=_of_tenant("max_bytes"), limit=limit, value=value)
        self._added_bytes += size_bytes

    def counts(self, store: StoreId) -> bool:
        """Tell whether a store is open, or being opened."""
        return store in self.open or store in self.opening

    def open_room(self) -> int | None:
        """Return how many more stores may be open, which may be below 0; None without a limit."""
        limit = self.quota.max_open_stores
        if limit is None:
            return None
        return limit - self.elsewhere[0] - len(self.open) - len(self.opening - self.open.keys())

    @property
    def upload_count(self) -> int:
        """How many uploads this server holds."""
        return sum(self.uploads.values())

    # After it
    def wrote(self, store: Store, added_bytes: int) -> None:
        """Note that a store was changed and takes `added_bytes` more."""
        if self.quota.max_bytes is not None:
            self.touched[store] = None
            self._added_bytes += added_bytes
        if self.quota.max_uploads is not None:
            self.count_uploads(store)

    def count_uploads(self, store: Store) -> None:
        """Note how many unfinished uploads an open store has, unless its file is in use. Asks the
        file if it has some, or had some lately."""
        if store.state is not OpenState.SERVING or store.id not in self.open:
            return
        if store.uploads_due_at != NEVER and (count := len(store.contents.staged())):
            self.uploads[store.id] = count
        else:
            self.uploads.pop(store.id, None)

    def opened(self, store: Store) -> None:
        """Note that a store is open."""
        self.open[store.id] = store
        self.opening.discard(store.id)
        self.wrote(store, 0)

    def gone(self, store: StoreId) -> None:
        """Note that a store is closed, or will not be opened."""
        self.open.pop(store, None)
        self.opening.discard(store)
        self.uploads.pop(store, None)

    def longest_unused(self, count: int) -> list[Store]:
        """Return that many of its open stores."""
        return nsmallest(count, self.open.values(), key=lambda store: store.used_at)

    # Reports
    def take_touched(self) -> list[Store]:
        """Return the touched stores that can tell their size now, and forget them. What closed
        stores have is told when they close."""
        touched, self.touched = self.touched, {}
        found = []
        for store in touched:
            if store.state is OpenState.SERVING:
                found.append(store)
            elif store.state is not OpenState.CLOSED:
                self.touched[store] = None
        return found

    def reported(self) -> None:
        """Note that a report was made."""
        self._reported_bytes += self._added_bytes
        self._added_bytes = self.operation_count = self.size_bytes = 0

    def told(self, used_bytes: int, shares: tuple[float, float]) -> None:
        """Take the coordinator's answer to the last report."""
        self._told_bytes = used_bytes
        self._reported_bytes = 0
        if shares != self._shares:
            self._shares = shares
            self._set_rates()

    def _set_rates(self) -> None:
        quota, (share, byte_share) = self.quota, self._shares
        self._rate = _bucket(self._rate, quota.max_rate, share)
        self._byte_rate = _bucket(self._byte_rate, quota.max_bytes_per_second, byte_share)


class RefusedOperations(NamedTuple):
    """The operations of a group that are refused, and why."""

    include: Callable[[list[Any]], bool]
    error: LimitExceededError


def _begins_upload(store: Store, operation: Sequence[Any]) -> bool:
    # A chunk of an upload that is there may come: it is how one ends.
    return (
        operation[0] == frames.PUT_CHUNK
        and len(operation) > 1
        and type(operation[1]) is bytes
        and store.contents.upload(operation[1]) is None
    )


def adds(operation: Sequence[Any]) -> bool:
    """Tell if an operation may make its store larger."""
    number = operation[0]
    if number == frames.BATCH:
        members = operation[1] if len(operation) > 1 else None
        return type(members) is list and any(
            type(member) is list and member and member[0] in _ADDING for member in members
        )
    return number in _ADDING


def _count(operation: Sequence[Any]) -> int:
    if operation[0] == frames.BATCH and len(operation) > 1 and type(operation[1]) is list:
        return len(operation[1])
    return 1


def _of_tenant(what: str) -> str:
    return f"the tenant's {what}"


def _bucket(
    before: TokenBucket | None, per_second: float | None, share: float
) -> TokenBucket | None:
    if per_second is None:
        return None
    per_second = max(per_second * share, _LEAST_PER_SECOND)
    if before is None:
        return TokenBucket(per_second)
    before.change(per_second)
    return before


#: A bucket that never fills would tell callers to wait for ever.
_LEAST_PER_SECOND: Final = 0.001

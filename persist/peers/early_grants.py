"""Grants that the coordinator tells before this server asks: it has just named this server to a
client, whose first frame is about to arrive. So a lone opening waits for no answer.

An early grant may be late, so it may be wrong: this incarnation may have released the store since,
and another server may own it. Only this incarnation can change what a grant says while it lives: it
releases stores, reports them deleted, or cold. It counts these requests, and heartbeats tell the
count while none of them is under way (`given_up`). The coordinator repeats, with a grant, the count
that it had heard before it read the store's record. Invariant:

- A grant is believed only while its count is this server's count. Then each request that was ever
  begun had been answered before the record was read, and none was begun since.

A request that was never answered may still arrive, for an early grant as for one that was asked
for; those who give stores up keep such stores from being opened (`giving_back.py`, `leases.py`).

Clients may ask for any number of names, so the table is bounded. A grant that is told alone lets
the store be opened while the first frame is on its way (`open_queue.py`). One of several opens
nothing by itself: it waits a few seconds for operations that need it. No grant is told of a store
that was never written, or is cold.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from holdfast.protocol.control import Grant, StoreState
from holdfast.protocol.errors import MalformedFrameError
from holdfast.protocol.limits import EARLY_GRANT_SECONDS, MAX_EARLY_GRANTS, MAX_INTEGER
from holdfast.protocol.names import StoreId, StoreKind, check_store, check_tenant


class EarlyGrant(NamedTuple):
    """A grant, with the term of the coordinator that told it, and its count of ended lives."""

    grant: Grant
    term: int
    ended: int


class _Kept(NamedTuple):
    keep_until: float
    given_up: int
    granted: EarlyGrant


class EarlyGrants:
    """The early grants of one incarnation."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` only decides how long grants are kept."""
        self._clock = clock
        self._given_up = 0
        self._under_way = 0
        #: The oldest first.
        self._kept: dict[StoreId, _Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def given_up(self) -> int | None:
        """What a heartbeat tells: how often this incarnation has given something up. None while it
        does."""
        return None if self._under_way else self._given_up

    @contextlib.contextmanager
    def giving_up(self) -> Iterator[None]:
        """Enter this around each request that changes what the coordinator would grant."""
        self._given_up += 1
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1

    def hear(self, fields: Any) -> list[StoreId]:
        """Keep the grants that the coordinator tells this incarnation, instead of the oldest ones.
        Return their stores, if they count now. Raises MalformedFrameError, InvalidNameError."""
        term, ended = _number(fields, "term"), _number(fields, "ended")
        given_up = _number(fields, "given_up")
        keep_until = self._clock() + EARLY_GRANT_SECONDS
        granted = [_granted(row) for row in _rows(fields)]
        for store, grant in granted:
            self._kept.pop(store, None)
            if len(self._kept) >= MAX_EARLY_GRANTS:
                del self._kept[next(iter(self._kept))]
            self._kept[store] = _Kept(keep_until, given_up, EarlyGrant(grant, term, ended))
        return [store for store, _ in granted] if self._knew_all(given_up) else []

    def take(self, store: StoreId) -> EarlyGrant | None:
        """Return the grant of a store that is to be opened now, at most once; None if there is
        none, or it may be wrong by now."""
        kept = self._kept.pop(store, None)
        if kept is None or not self._knew_all(kept.given_up) or self._clock() >= kept.keep_until:
            return None
        return kept.granted

    def _knew_all(self, given_up: int) -> bool:
        """Tell if the coordinator knew all that this incarnation has given up until now."""
        return given_up == self.given_up


def _rows(fields: Any) -> list[Any]:
    rows = fields.get("stores")
    if type(rows) is not list or any(type(row) is not list or len(row) != 5 for row in rows):
        reason = "stores must be a list of [tenant, kind, name, epoch, revision]"
        raise MalformedFrameError(reason=reason)
    return rows


def _granted(row: list[Any]) -> tuple[StoreId, Grant]:
    tenant, kind, name, epoch, revision = row
    for number in (kind, epoch, revision):
        if type(number) is not int or not 0 <= number <= MAX_INTEGER:
            raise MalformedFrameError(reason="kinds, epochs and revisions must be numbers")
    try:
        store = StoreId(check_tenant(tenant), StoreKind(kind), check_store(name))
    except (TypeError, ValueError) as error:
        raise MalformedFrameError(reason=f"stores: {error}") from error
    durable = StoreState.DURABLE
    return store, Grant(epoch, durable, durable, None, revision)


def _number(fields: Any, name: str) -> int:
    number = fields.get(name)
    if type(number) is not int or not 0 <= number <= MAX_INTEGER:
        raise MalformedFrameError(reason=f"{name} must be a number")
    return number

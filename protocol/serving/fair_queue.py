"""Queued work of several tenants, taken in fair turns, and a shared space that no tenant can fill.

Pure. The coordinator and the persist servers queue requests here, so that a flood of one tenant
costs the others a turn and not a place at the end of a long queue.

- `FairQueue` is deficit round robin (Shreedhar and Varghese, 1995): a tenant spends its
  share, and then waits while the others take their turns. The cost of an item may be given
  after it was taken, since only then it is known what a request asks for. A tenant that
  overspends sits out as many turns.
- `SharedRoom` bounds the waiting items by a dynamic threshold (Choudhury and Hahne, 1998): a tenant
  may have as much as is still free. A single tenant gets half of the room. The more tenants fill
  it, the less each of them gets, and some room is always left for a tenant that has nothing in it.
  Rejected: a fixed part for each tenant, which wastes room when only one is busy; and dropping
  items of the largest tenant, which refuses late what could have been refused at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Items in order for each tenant; tenants take turns:

    while queue:
        tenant, items, allowance = queue.begin_turn()
        spent = 0
        while items and spent < allowance:
            spent += work_on(items.popleft())
        queue.end_turn(spent)
    """

    def __init__(self, share: int) -> None:
        """`share` is what a tenant may spend before the next tenant's turn."""
        assert share > 0
        self._share = share
        #: Never contains an empty queue, except during its turn.
        self._queues: dict[str, deque[T]] = {}
        #: The tenants of `_queues`; the first one has the turn.
        self._turns: deque[str] = deque()
        #: What each tenant that has had a turn may still spend; below 0, what it owes.
        self._left: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._turns)

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def push(self, tenant: str, item: T) -> None:
        """Append `item` to the items of `tenant`."""
        self._queue_of(tenant).append(item)

    def extend(self, tenant: str, items: Iterable[T]) -> None:
        """Append `items`, at least one, to the items of `tenant`."""
        self._queue_of(tenant).extend(items)

    def push_front(self, tenant: str, item: T) -> None:
        """Put `item` before the other items of `tenant`."""
        self._queue_of(tenant).appendleft(item)

    def remove(self, tenant: str, item: T) -> None:
        """Take an item of `tenant` out, before its turn. Raises ValueError if it is not here."""
        items = self._queues.get(tenant, deque())
        items.remove(item)
        if not items:
            del self._queues[tenant]
            self._left.pop(tenant, None)
            self._turns.remove(tenant)

    def begin_turn(self) -> tuple[str, deque[T], int]:
        """Return the tenant whose turn it is, its items (take them
        from the left), and its allowance.

        Raises IndexError if the queue is empty.
        """
        turns = self._turns
        tenant = turns[0]
        if len(turns) == 1:
            self._left[tenant] = self._share
            return tenant, self._queues[tenant], self._share
        left = self._left
        while left.setdefault(tenant, self._share) <= 0:
            left[tenant] += self._share
            turns.rotate(-1)
            tenant = turns[0]
        return tenant, self._queues[tenant], left[tenant]

    def end_turn(self, spent: int) -> None:
        """End the turn that began last; the taken items cost `spent`."""
        tenant = self._turns[0]
        if self._queues[tenant]:
            self._left[tenant] -= spent
        else:
            # Its debt is forgotten: it has no items left that could wait for it.
            del self._queues[tenant], self._left[tenant]
            self._turns.popleft()

    def _queue_of(self, tenant: str) -> deque[T]:
        queue = self._queues.get(tenant)
        if queue is None:
            queue = self._queues[tenant] = deque()
            self._turns.append(tenant)
        return queue


class SharedRoom:
    """How much of a limited room each tenant uses."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        #: Only tenants that use some of it.
        self._by_tenant: dict[str, int] = {}

    @property
    def taken(self) -> int:
        """What all tenants use together."""
        return self._taken

    def has(self, tenant: str, size: int) -> bool:
        """Tell whether `tenant` may add `size`. Any size up to the
        limit fits into an empty room."""
        mine = self._by_tenant.get(tenant, 0)
        return self._taken + size <= self._limit and mine <= self._limit - self._taken

    def take(self, tenant: str, size: int) -> None:
        """Add `size` for `tenant`, even beyond the limit."""
        self._taken += size
        self._by_tenant[tenant] = self._by_tenant.get(tenant, 0) + size

    def give_back(self, tenant: str, size: int) -> None:
        """Remove `size` that was added for `tenant`."""
        self._taken -= size
        left = self._by_tenant.get(tenant, 0) - size
        assert left >= 0
        if left:
            self._by_tenant[tenant] = left
        else:
            self._by_tenant.pop(tenant, None)

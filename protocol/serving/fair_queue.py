"""What waits in a server, of several tenants: taken by turns, in a room that nobody can fill alone.

Pure. Both servers put requests here, so that one tenant's flood costs the others a turn and not a
place at the end of its queue.

- `FairQueue` is deficit round robin (Shreedhar and Varghese, 1995): each tenant spends its share
  and then waits for the turns of the others. A cost may be told after the item was taken, since
  only then it is known what a request asks for; who spends more than a share sits out as many
  turns.
- `SharedRoom` bounds what waits by a dynamic threshold (Choudhury and Hahne, 1998): a tenant may
  have as much as is still free. Alone it gets half of the room; the more tenants fill it, the less
  each of them gets, and some is always left for one that has nothing in it yet. Rejected: a fixed
  part for each tenant, which wastes the room when one is busy, and pushing out the one that has
  most, which answers late what could have been refused at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Items in the order of each tenant, and of the tenants by turns:

        while queue:
            tenant, items, allowance = queue.begin_turn()
            spent = 0
            while items and spent < allowance:
                spent += work_on(items.popleft())
            queue.end_turn(spent)
    """

    def __init__(self, share: int) -> None:
        """`share` is what a tenant may spend before the next one has its turn."""
        assert share > 0
        self._share = share
        #: Never an empty one, but in its turn.
        self._queues: dict[str, deque[T]] = {}
        #: The tenants of `_queues`, the one whose turn it is first.
        self._turns: deque[str] = deque()
        #: Of tenants in `_turns` that have had a turn: what they have left, or owe.
        self._left: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._turns)

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def push(self, tenant: str, item: T) -> None:
        """Add `item` behind the others of `tenant`."""
        self._queue_of(tenant).append(item)

    def extend(self, tenant: str, items: Iterable[T]) -> None:
        """Add `items`, at least one, behind the others of `tenant`, in their order."""
        self._queue_of(tenant).extend(items)

    def push_front(self, tenant: str, item: T) -> None:
        """Add `item` before the others of `tenant`."""
        self._queue_of(tenant).appendleft(item)

    def begin_turn(self) -> tuple[str, deque[T], int]:
        """Return whose turn it is, its items, to be taken from the left, and what it may spend.
        Raises IndexError if there are none."""
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
        """The turn that began last has ended, and what was taken costs this much."""
        tenant = self._turns[0]
        if self._queues[tenant]:
            self._left[tenant] -= spent
        else:
            # What it owes is forgotten: it has nothing that could wait for it.
            del self._queues[tenant], self._left[tenant]
            self._turns.popleft()

    def _queue_of(self, tenant: str) -> deque[T]:
        queue = self._queues.get(tenant)
        if queue is None:
            queue = self._queues[tenant] = deque()
            self._turns.append(tenant)
        return queue


class SharedRoom:
    """How much waits, of each tenant and of all."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        #: Of tenants that have something in it.
        self._by_tenant: dict[str, int] = {}

    @property
    def taken(self) -> int:
        """What all of them have in it."""
        return self._taken

    def has(self, tenant: str, size: int) -> bool:
        """Tell if `tenant` may add `size`. What fits at all fits into an empty room."""
        mine = self._by_tenant.get(tenant, 0)
        return self._taken + size <= self._limit and mine <= self._limit - self._taken

    def take(self, tenant: str, size: int) -> None:
        """Add `size` of `tenant`, whether there is room or not."""
        self._taken += size
        self._by_tenant[tenant] = self._by_tenant.get(tenant, 0) + size

    def give_back(self, tenant: str, size: int) -> None:
        """Remove `size` that `tenant` had added."""
        self._taken -= size
        left = self._by_tenant.get(tenant, 0) - size
        assert left >= 0
        if left:
            self._by_tenant[tenant] = left
        else:
            self._by_tenant.pop(tenant, None)

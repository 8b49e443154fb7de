"""The schedule: which stores have something to send, to which server, and when.

Pure. A store that has something to send is in line for its owner's server, or waits for the
coordinator to name its owner, or backs off. The backoff grows with each failure in a row,
with jitter.

Invariants: a store whose queue is idle has nothing unsent; one that is ready is in the line of its
owner's server, which is not gone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from operator import itemgetter
from typing import Final

from holdfast.client.wire.store_queue import QueueState, ServerQueue, StoreKey, StoreQueue
from holdfast.protocol.control import Owner
from holdfast.protocol.errors import HoldfastError, NotOwnerError, WriterGapError

#: The first and the longest pause before a store is tried again.
BACKOFF_SECONDS: Final = 0.01
BACKOFF_MAX_SECONDS: Final = 0.5
#: How many stores are remembered, with owner and counter, while they are idle.
MAX_KNOWN_STORES: Final = 65536

_packed: Final = itemgetter(0)
#: As globals, because Python 3.11 needs 0.07 us to look up an enum member, four times for each
#: operation.
IDLE: Final = QueueState.IDLE
READY: Final = QueueState.READY


class Schedule:
    """The stores and servers of one client."""

    def __init__(self, jitter: Callable[[], float]) -> None:
        """`jitter` returns factors of about 1 for the backoff."""
        self.queues: dict[StoreKey, StoreQueue] = {}
        #: Queues that may hold something, in no order; empty ones are dropped lazily.
        self.active: dict[StoreKey, StoreQueue] = {}
        self.servers: dict[str, ServerQueue] = {}
        #: Stores whose owner has to be asked for.
        self.unresolved: list[StoreKey] = []
        self._jitter = jitter
        self._first_counter = 1
        self._backing_off: list[tuple[float, int, StoreQueue]] = []
        self._backoff_count = 0

    @property
    def wake_at(self) -> float:
        """The earliest time at which `wake` has something to do."""
        return self._backing_off[0][0] if self._backing_off else math.inf

    def open(self, key: StoreKey) -> StoreQueue:
        """Make the queue of an unknown store."""
        if len(self.queues) >= MAX_KNOWN_STORES:
            self._forget_idle_stores()
        queue = self.queues[key] = StoreQueue(key, self._first_counter)
        return queue

    def activate(self, queue: StoreQueue) -> None:
        """Put a queue in line for its owner, or ask for its owner."""
        self.active[queue.key] = queue
        server_queue = queue.server_queue
        if queue.owner is None or server_queue is None or server_queue.gone:
            queue.owner = queue.server_queue = None
            queue.state = QueueState.RESOLVING
            self.unresolved.append(queue.key)
        else:
            queue.state = READY
            server_queue.line.append(queue)

    def resume(self, queue: StoreQueue) -> None:
        """Put a queue in line if it is idle and has something to send: `first_unacked` may have
        risen, or a group has to be sent again."""
        if queue.state is IDLE and queue.has_unsent:
            self.activate(queue)

    def wake(self, now: float) -> None:
        """Put queues in line whose backoff is over."""
        while self._backing_off and self._backing_off[0][0] <= now:
            at, _, queue = heappop(self._backing_off)
            if queue.state is QueueState.WAITING and queue.retry_at == at:
                self.activate(queue)

    def retry(
        self, queue: StoreQueue, error: HoldfastError, now: float, *, forget_owner: bool
    ) -> None:
        """Send all unanswered writes again, in order, after a pause. If the owner has changed or
        lacks a write, the first retry comes at once."""
        queue.requeue()
        queue.last_error = error
        queue.attempt += 1
        if forget_owner:
            queue.owner = None
        if queue.attempt == 1 and isinstance(error, NotOwnerError | WriterGapError):
            self.activate(queue)
            return
        delay = min(BACKOFF_MAX_SECONDS, BACKOFF_SECONDS * 2 ** min(queue.attempt - 1, 16))
        queue.retry_at = now + delay * self._jitter()
        queue.state = QueueState.WAITING
        self._backoff_count += 1
        heappush(self._backing_off, (queue.retry_at, self._backoff_count, queue))

    def take_unresolved(self) -> list[StoreKey]:
        """Return the stores whose owner has to be asked for, each once."""
        stores = list(dict.fromkeys(self.unresolved))
        self.unresolved.clear()
        return stores

    def take_owner(self, queue: StoreQueue, owner: Owner) -> None:
        """Set the owner of a store, as the coordinator named it."""
        queue.owner = owner
        server_queue = self.servers.get(owner.server)
        if server_queue is None:
            server_queue = self.servers[owner.server] = ServerQueue(owner.server)
        server_queue.incarnation = owner.incarnation
        queue.server_queue = server_queue

    def server_gone(self, server_queue: ServerQueue, error: HoldfastError, now: float) -> None:
        """Forget a server that nobody answers for. What was sent there goes to the next owner."""
        server_queue.gone = True
        del self.servers[server_queue.server]
        for queue in self.active.values():
            if queue.server_queue is server_queue and not queue.empty:
                self.retry(queue, error, now, forget_owner=True)
            else:
                self.leave_line(queue, server_queue)
                # A read may have been in flight there, of a store that has another owner by now.
                self.resume(queue)

    def leave_line(self, queue: StoreQueue, server_queue: ServerQueue) -> None:
        """Make a queue idle that is in the line of a server to which nothing is sent any more.
        Otherwise it would stay ready, and what is submitted later would wait there for ever."""
        if queue.state is READY and queue.server_queue is server_queue:
            queue.state = IDLE

    def suspect_answered(self) -> None:
        """Wake stores that waited for the coordinator to check a server."""
        for queue in self.active.values():
            if queue.state is QueueState.WAITING and queue.owner is None:
                self.activate(queue)

    def reconnected(self) -> None:
        """Send everything unanswered again, including questions for owners: it may be lost."""
        for queue in self.active.values():
            queue.requeue()
            if queue.state is QueueState.RESOLVING:
                self.unresolved.append(queue.key)
            elif queue.has_unsent:
                self.activate(queue)

    def waiting_bytes(self) -> int:
        """Return the bytes of all that waits or is unanswered, except reads in flight."""
        size_bytes = 0
        for queue in self.active.values():
            size_bytes += sum(map(len, map(_packed, queue.writes)))
            size_bytes += sum(map(len, map(_packed, queue.reads)))
            size_bytes += sum(group.size_bytes for group in queue.groups if not group.answered)
        return size_bytes

    def expire(self, now: float) -> tuple[float, int]:
        """Fail operations that are past their deadline, except reads in flight.

        Return the earliest deadline of the others, and how many operations were dropped.
        """
        deadline_at = math.inf
        dropped_count = 0
        for key, queue in list(self.active.items()):
            earliest, dropped = queue.expire(now)
            deadline_at = min(deadline_at, earliest)
            dropped_count += dropped
            self.resume(queue)
            if queue.empty and queue.state is not QueueState.RESOLVING:
                queue.state = IDLE
                del self.active[key]
        return deadline_at, dropped_count

    def validate(self) -> int:
        """Check the invariants. Return how many operations the queues hold."""
        count = 0
        for queue in self.queues.values():
            counters = [group.counter for group in queue.groups]
            assert counters == sorted(set(counters))
            assert all(counter < queue.next_counter for counter in counters)
            unsent = [group.frame == 0 for group in queue.groups if not group.answered]
            assert unsent == sorted(unsent), "groups to be sent come after those sent"
            count += len(queue.writes) + len(queue.reads)
            count += sum(len(group.operations) for group in queue.groups if not group.answered)
            assert queue.empty or queue.key in self.active
            assert queue.state is not IDLE or not queue.has_unsent
            if queue.state is READY:
                assert queue.server_queue is not None and queue in queue.server_queue.line
                assert queue.server_queue in self.servers.values(), "in line where nobody serves"
        return count

    def _forget_idle_stores(self) -> None:
        """Forget some of the idle stores. A store that comes back starts above every forgotten
        counter, with a `first_unacked` that covers the jump, so no old outcome is taken for one of
        its writes.
        """
        idle = [queue for queue in self.queues.values() if queue.empty and queue.state is IDLE]
        for queue in idle[: MAX_KNOWN_STORES // 4]:
            self._first_counter = max(self._first_counter, queue.next_counter)
            self.active.pop(queue.key, None)
            del self.queues[queue.key]

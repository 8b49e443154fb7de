"""The pull requests that wait at one consumer, and which of them gets the next message.

Requests are served by turns, one message each, in the order in which they arrived; those of a
`prioritized` consumer by priority first. A request ends when it is filled, when it expires, when
the next message is larger than what is left of its bytes, or silently when nobody listens on its
inbox any more, which is looked at before a message is spent on it.

Priority policies: with `overflow` a request is passed over until enough is pending or
unacknowledged. With `pinned_client` one client is pinned, by an id that its messages carry, and the
requests of others wait until it is silent for the timeout.

Pure: times are int milliseconds. Whether somebody listens on an inbox is asked of a function.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from holdfast.gateway.jetstream.api.consumer_config import PriorityPolicy
from holdfast.gateway.jetstream.consumers import statuses
from holdfast.gateway.jetstream.consumers.effects import Advice, Advise, Effect, Status
from holdfast.gateway.jetstream.consumers.ledger import NEVER
from holdfast.gateway.jetstream.consumers.settings import DeliverySettings

_OVERFLOW: Final = PriorityPolicy.OVERFLOW
_PINNED_CLIENT: Final = PriorityPolicy.PINNED_CLIENT
_PRIORITIZED: Final = PriorityPolicy.PRIORITIZED
#: A request of a `prioritized` consumer has a priority from 0, the highest, to 9.
PRIORITIES: Final = 10
#: The most that wait at one consumer, whatever its configuration allows.
_MAX_WAITING: Final = 16_384


class Pull:
    """One pull request, and what is left of it."""

    __slots__ = (
        "bytes_left",
        "expires_at",
        "group",
        "heartbeat_at",
        "heartbeat_ms",
        "inbox",
        "left",
        "min_ack_pending",
        "min_pending",
        "no_wait",
        "pin_id",
        "priority",
        "served",
        "turn",
    )

    def __init__(self, inbox: str, batch: int) -> None:
        self.inbox = inbox
        self.left = batch
        #: 0: any number.
        self.bytes_left = 0
        self.served = 0
        self.expires_at = NEVER
        self.heartbeat_ms = 0
        self.heartbeat_at = NEVER
        self.no_wait = False
        self.group = ""
        self.min_pending = 0
        self.min_ack_pending = 0
        self.pin_id = ""
        self.priority = 0
        #: The event in which the interest was last asked for.
        self.turn = -1


class ClientPin:
    """Which client of a priority group is pinned."""

    def __init__(self, timeout_ms: int, new_id: Callable[[], str]) -> None:
        self.timeout_ms = timeout_ms
        self._new_id = new_id
        self.id = ""
        self.group = ""
        self.pinned_at = 0
        self.until = NEVER

    def begin(self, group: str, now: int) -> None:
        """Pin a client, under a new id."""
        self.id, self.group, self.pinned_at = self._new_id(), group, now
        self.extend(now)

    def extend(self, now: int) -> None:
        """The pinned client is there."""
        self.until = now + self.timeout_ms

    def end(self) -> None:
        """Pin nobody."""
        self.id, self.pinned_at, self.until = "", 0, NEVER


class Pulls:
    """The requests that wait at one consumer."""

    def __init__(
        self,
        settings: DeliverySettings,
        has_interest: Callable[[str], bool],
        new_id: Callable[[], str],
    ) -> None:
        self.policy = settings.config.priority_policy
        self.max_waiting = min(settings.config.max_waiting, _MAX_WAITING)
        self.pin = ClientPin(settings.pin_timeout_ms, new_id)
        self.count = 0
        #: How many messages all of them still want.
        self.wanted = 0
        #: No request expires and no heartbeat is due before this time.
        self.check_at = NEVER
        #: When `sweep` was last called.
        self.swept_at = 0
        #: The number of the event: interest is asked for once in each.
        self.turn = 0
        self._one_shots = 0
        self._has_interest = has_interest
        queues = PRIORITIES if self.policy is _PRIORITIZED else 1
        self._queues: list[deque[Pull]] = [deque() for _ in range(queues)]

    def __iter__(self) -> Iterator[Pull]:
        for queue in self._queues:
            yield from queue

    @property
    def full(self) -> bool:
        """Whether no more requests may wait."""
        return self.count >= self.max_waiting

    def add(self, pull: Pull) -> None:
        """Let a request wait."""
        self._queues[pull.priority if self.policy is _PRIORITIZED else 0].append(pull)
        self.count += 1
        self.wanted += max(pull.left, 1)
        self._one_shots += pull.no_wait
        self.check_at = min(self.check_at, pull.expires_at, pull.heartbeat_at)

    def take(
        self, size_bytes: int, pending: int, ack_pending: int, now: int, out: list[Effect]
    ) -> Pull | None:
        """Return the request that gets the next message, which has this size. `pending` counts it.

        Requests that end instead are told so. None if no request may have it now.
        """
        passed_over = 0
        for queue in self._queues:
            while queue:
                pull = queue[0]
                verdict = self._verdict(pull, pending, ack_pending, now, out)
                if verdict is None:
                    self._remove(queue, pull)
                    continue
                if not verdict:
                    queue.rotate(-1)
                    passed_over += 1
                    if passed_over >= self.count:
                        return None
                    continue
                if 0 < pull.bytes_left < size_bytes:
                    out.append(_ended(pull, statuses.SIZE_EXCEEDED))
                    self._remove(queue, pull)
                    continue
                if self.policy is _PINNED_CLIENT and not self.pin.id:
                    self._pin(pull, now, out)
                self._serve(queue, pull, size_bytes, now)
                return pull
        return None

    def sole(self, now: int) -> Pull | None:
        """Return the request that gets all messages that come next, as many as it wants: if only
        one waits, and it needs no look at each message."""
        if self.count != 1 or self.policy in (_PINNED_CLIENT, _OVERFLOW):
            return None
        pull = next(iter(self))
        if pull.bytes_left or pull.expires_at <= now or not self._heard(pull):
            return None
        return pull

    def take_run(self, pull: Pull, count: int, now: int) -> None:
        """Give so many messages to the `sole` request, which wants as many."""
        pull.served += count - 1
        pull.left -= count - 1
        self.wanted -= count - 1
        queue = next(each for each in self._queues if each)
        self._serve(queue, pull, 0, now)

    def finish_one_shots(self, now: int, out: list[Effect]) -> None:
        """Nothing is left to deliver: requests that do not wait for more end here, but for those
        that expire."""
        if not self._one_shots:
            return
        for queue in self._queues:
            for pull in [each for each in queue if each.no_wait]:
                if pull.expires_at == NEVER or (pull.served and pull.expires_at > now):
                    out.append(Status(pull.inbox, statuses.NO_MESSAGES))
                    self._remove(queue, pull)

    def is_due(self, now: int) -> bool:
        """Return whether a request expires now, or wants a heartbeat."""
        return self.check_at <= now and any(
            pull.expires_at <= now or pull.heartbeat_at <= now for pull in self
        )

    def sweep(self, now: int, consumer_seq: int, stream_seq: int, out: list[Effect]) -> None:
        """End what has expired, drop what nobody listens for, and send the heartbeats that are
        due, which tell the numbers of the last delivery."""
        check_at = NEVER
        self.swept_at = now
        for queue in self._queues:
            for pull in list(queue):
                if pull.expires_at <= now:
                    out.append(_ended(pull, statuses.REQUEST_TIMEOUT))
                    self._remove(queue, pull)
                    continue
                if not self._heard(pull):
                    self._remove(queue, pull)
                    continue
                if pull.heartbeat_at <= now and pull.no_wait and pull.served:
                    # Nothing more could be delivered for so long, be it for what is pending.
                    out.append(Status(pull.inbox, statuses.NO_MESSAGES))
                    self._remove(queue, pull)
                    continue
                if pull.heartbeat_at <= now:
                    block = statuses.idle_heartbeat(consumer_seq, stream_seq)
                    out.append(Status(pull.inbox, block))
                    pull.heartbeat_at = now + pull.heartbeat_ms
                check_at = min(check_at, pull.expires_at, pull.heartbeat_at)
        self.check_at = check_at

    def end_all(self, status: str | bytes, out: list[Effect]) -> None:
        """End all requests with a status, which tells what is left if it is text."""
        for pull in self:
            block = status if isinstance(status, bytes) else None
            out.append(Status(pull.inbox, block) if block else _ended(pull, str(status)))
        for queue in self._queues:
            queue.clear()
        self.count = self.wanted = self._one_shots = 0
        self.check_at = NEVER

    # Inside

    def _verdict(
        self, pull: Pull, pending: int, ack_pending: int, now: int, out: list[Effect]
    ) -> bool | None:
        """Return whether a request may have the next message; None if it ends."""
        if pull.expires_at <= now:
            out.append(_ended(pull, statuses.REQUEST_TIMEOUT))
            return None
        if not self._heard(pull):
            return None
        if self.policy is _PINNED_CLIENT and pull.pin_id != self.pin.id:
            if pull.pin_id:
                out.append(_ended(pull, statuses.WRONG_PIN))
                return None
            return False
        if self.policy is _OVERFLOW and (pull.min_pending > 0 or pull.min_ack_pending > 0):
            return (0 < pull.min_pending <= pending) or (0 < pull.min_ack_pending <= ack_pending)
        return True

    def _heard(self, pull: Pull) -> bool:
        """Return whether somebody listens on the inbox; asked once in each event."""
        if pull.turn != self.turn:
            pull.turn = self.turn
            return self._has_interest(pull.inbox)
        return True

    def _pin(self, pull: Pull, now: int, out: list[Effect]) -> None:
        self.pin.begin(pull.group, now)
        pull.pin_id = self.pin.id
        out.append(Advise(Advice.PINNED, (pull.group, self.pin.id)))

    def _serve(self, queue: deque[Pull], pull: Pull, size_bytes: int, now: int) -> None:
        pull.served += 1
        if pull.bytes_left:
            pull.bytes_left -= size_bytes
            if not pull.bytes_left and pull.left > 1:
                self.wanted -= pull.left - 1
                pull.left = 1
        if pull.left <= 1:
            self._remove(queue, pull)
            pull.left -= 1
            return
        pull.left -= 1
        self.wanted -= 1
        if pull.heartbeat_ms:
            pull.heartbeat_at = now + pull.heartbeat_ms
        if len(queue) > 1:
            queue.rotate(-1)

    def _remove(self, queue: deque[Pull], pull: Pull) -> None:
        if queue[0] is pull:
            queue.popleft()
        else:
            queue.remove(pull)
        self.count -= 1
        self.wanted -= max(pull.left, 1)
        self._one_shots -= pull.no_wait


def _ended(pull: Pull, status: str) -> Status:
    return Status(pull.inbox, statuses.ended(status, pull.left, pull.bytes_left))

"""The events of one process on their way to the audit log: counted, bounded, kept until recorded.

Pure; `now` is monotonic seconds. Two kinds of events come in:

- What operators do is `add`ed: one record each, in a queue of MAX_QUEUED.
- What others can repeat at will, as logins and refused requests, is `note`d: events alike (the same
  action, outcome, token, tenant, reason and store) become one record with a count at the end of a
  span. The span doubles while they go on, from FIRST_SPAN_SECONDS to LONGEST_SPAN_SECONDS. New
  kinds of them have a budget. Beyond it they are counted for each token, without store and reason;
  new tokens have a budget of the same size, and beyond that one all are counted together. What was
  refused has a smaller budget than what was allowed: only who holds a valid token can be allowed
  anything, but everybody can make up tokens. So no event goes uncounted, and hostile clients cost a
  record a second in the long run, whatever they do.

Events of servers themselves may be `patient`: they wait until the audit log `flows`, so that a
cluster in which nobody does anything has no audit log. What does not fit the queue is counted, and
the count is recorded as an event itself.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from holdfast.protocol.access.audit_event import AuditAction, AuditEvent, AuditOutcome

FIRST_SPAN_SECONDS: Final = 2.0
LONGEST_SPAN_SECONDS: Final = 600.0
#: How many new kinds may be recorded at once, and in the long run each second.
REFUSED_BUDGET: Final = (100, 1 / 6)
ALLOWED_BUDGET: Final = (1000, 1 / 3)
MAX_QUEUED: Final = 1024
MAX_PATIENT: Final = 64
#: How many events go to the recorder at a time.
BATCH_EVENTS: Final = 64
#: These are about a connection or a request as such, or come for all stores of a tenant.
_WITHOUT_STORE: Final = frozenset(
    [AuditAction.LOGIN, AuditAction.REQUEST, AuditAction.STORE_BACKED_UP]
)

#: Action, outcome, token, tenant, reason, store.
Kind = tuple[str, str, str, str, str, str]


@dataclass(slots=True)
class _Counted:
    """Events alike, since the last record of them."""

    first: AuditEvent
    due_at: float
    span_seconds: float = FIRST_SPAN_SECONDS
    count: int = 0
    last_time: int = 0

    def has_ended(self, now: float) -> bool:
        """Tell whether there were none for so long that the next one is something new."""
        return not self.count and now >= self.due_at + LONGEST_SPAN_SECONDS


class _Budget:
    """How many new kinds may be recorded."""

    def __init__(self, most: int, per_second: float) -> None:
        self._most = self._left = float(most)
        self._per_second = per_second
        self._at = math.inf

    def spend(self, now: float) -> bool:
        gained = max(0.0, now - self._at) * self._per_second
        self._left, self._at = min(self._most, self._left + gained), now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class AuditLedger:
    """The events that one process has seen and that are not recorded yet."""

    def __init__(
        self, lost: Callable[[int], AuditEvent], new_id: Callable[[AuditEvent], str]
    ) -> None:
        """`lost` makes the event that says how many were lost. `new_id` gives a record its id: the
        records of events alike must not share one."""
        self._make_lost = lost
        self._new_id = new_id
        self._queue: deque[AuditEvent] = deque()
        self._patient: deque[AuditEvent] = deque()
        self._flows = False
        self._counted: dict[Kind, _Counted] = {}
        #: When the first of them is to be recorded.
        self._due_at = math.inf
        #: Of kinds, and of tokens: for what was refused, and for the rest.
        self._budgets = {
            is_refused: (_Budget(*budget), _Budget(*budget))
            for is_refused, budget in ((True, REFUSED_BUDGET), (False, ALLOWED_BUDGET))
        }
        #: Events that found no room, and have not been recorded as lost.
        self.lost_count = 0

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, event: AuditEvent, *, patient: bool = False) -> None:
        """Queue an event. A patient one waits until the audit log flows."""
        if patient and not self._flows:
            if len(self._patient) >= MAX_PATIENT:
                self.lost_count += 1
                self._patient.popleft()
            self._patient.append(event)
        elif len(self._queue) >= MAX_QUEUED:
            self.lost_count += 1
        else:
            self._queue.append(event)

    def count_again(self, kind: Kind, time_ms: int) -> bool:
        """Count an event if there was one of its kind in this span. Otherwise return False: it is
        to be `note`d. Whoever repeats something at will costs no more than this."""
        counted = self._counted.get(kind)
        if counted is None or not counted.count:
            return False
        counted.count += 1
        counted.last_time = time_ms
        return True

    def note(self, event: AuditEvent, now: float) -> bool:
        """Count an event that may come in any number. Return whether `next_due_at` is sooner."""
        kinds, tokens = self._budgets[event.outcome == AuditOutcome.REFUSED]
        counted = self._counted.get(_kind(event))
        if counted is None and not kinds.spend(now):
            event = replace(event, store="", reason="", address="", details={})
            counted = self._counted.get(_kind(event))
            if counted is None and not tokens.spend(now):
                event = replace(event, token="", user="", tenant="")
                counted = self._counted.get(_kind(event))
        if counted is None or counted.has_ended(now):
            counted = self._counted[_kind(event)] = _Counted(event, now + FIRST_SPAN_SECONDS)
        elif not counted.count:
            counted.first = event
            counted.due_at = max(counted.due_at, now + counted.span_seconds)
        counted.count += 1
        counted.last_time = event.time
        is_sooner = counted.due_at < self._due_at
        self._due_at = min(self._due_at, counted.due_at)
        return is_sooner

    def flow(self) -> None:
        """Let patient events go: there is an audit log."""
        self._flows = True
        while self._patient:
            self.add(self._patient.popleft())

    def next_due_at(self) -> float:
        """Return when a count is to be recorded; infinity if there is none."""
        return self._due_at

    def close_spans(self) -> None:
        """Let all counts be due: the process ends."""
        for counted in self._counted.values():
            counted.due_at = self._due_at = -math.inf

    def take(self, now: float) -> Sequence[AuditEvent]:
        """Return the next events for the recorder, the oldest first; empty if there are none. They
        stay here until they are `recorded`."""
        if self._due_at <= now:
            self._close_due(now)
        if self._queue and not self._flows:
            # The log begins with this batch.
            waiting = list(self._queue)
            self._queue.clear()
            self.flow()
            self._queue.extend(waiting)
        if self.lost_count and len(self._queue) < MAX_QUEUED:
            self._queue.append(self._make_lost(self.lost_count))
            self.lost_count = 0
        return [self._queue[index] for index in range(min(len(self._queue), BATCH_EVENTS))]

    def recorded(self, count: int) -> None:
        """Forget the first `count` events: the audit log has them."""
        for _ in range(count):
            self._queue.popleft()

    def _close_due(self, now: float) -> None:
        """Make records of what is counted and due, and forget kinds that have ended."""
        for kind, counted in list(self._counted.items()):
            if counted.has_ended(now):
                del self._counted[kind]
            if counted.due_at > now or not counted.count:
                continue
            record = replace(counted.first, count=counted.count, last_time=counted.last_time)
            self.add(replace(record, id=self._new_id(record)))
            counted.count = 0
            counted.span_seconds = min(2 * counted.span_seconds, LONGEST_SPAN_SECONDS)
            counted.due_at = now + counted.span_seconds
        due = (each.due_at for each in self._counted.values() if each.count)
        self._due_at = min(due, default=math.inf)


def _kind(event: AuditEvent) -> Kind:
    return kind_of(
        event.action, event.outcome, event.token, event.tenant, event.reason, event.store
    )


def kind_of(
    action: str,
    outcome: str,
    token: str = "",
    tenant: str = "",
    reason: str = "",
    store: str = "",
    **rest: object,
) -> Kind:
    """Return which events are alike: those of the same kind."""
    return action, outcome, token, tenant, reason, "" if action in _WITHOUT_STORE else store

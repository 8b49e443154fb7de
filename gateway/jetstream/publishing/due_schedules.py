"""When schedules of one stream are due. Pure."""

from __future__ import annotations

import heapq
from typing import NamedTuple


class DueSchedule(NamedTuple):
    """A schedule: the message with this seq, which is the last of its subject."""

    due_ms: int
    subject: str
    seq: int


class DueSchedules:
    """The next time of each schedule, by subject."""

    def __init__(self) -> None:
        self._heap: list[DueSchedule] = []
        #: By subject: entries of the heap that are not these are void.
        self._valid: dict[str, DueSchedule] = {}

    def __len__(self) -> int:
        return len(self._valid)

    @property
    def next_ms(self) -> int | None:
        """When the next schedule is due; None without any."""
        heap = self._heap
        while heap and self._valid.get(heap[0].subject) is not heap[0]:
            heapq.heappop(heap)
        return heap[0].due_ms if heap else None

    def set(self, subject: str, seq: int, due_ms: int) -> None:
        """Note when a schedule is due. It takes the place of an earlier one of its subject."""
        due = self._valid[subject] = DueSchedule(due_ms, subject, seq)
        heapq.heappush(self._heap, due)

    def remove(self, subject: str) -> None:
        """Forget the schedule of a subject, if there is one."""
        self._valid.pop(subject, None)

    def has(self, subject: str) -> bool:
        """Tell whether a subject has a schedule."""
        return subject in self._valid

    def seq_of(self, subject: str) -> int:
        """Return the seq of the schedule of a subject, 0 if it has none."""
        found = self._valid.get(subject)
        return 0 if found is None else found.seq

    def take(self, now_ms: int) -> list[DueSchedule]:
        """Return the schedules that are due, the earliest first, and forget them."""
        taken = []
        while (next_ms := self.next_ms) is not None and next_ms <= now_ms:
            due = heapq.heappop(self._heap)
            del self._valid[due.subject]
            taken.append(due)
        return taken

"""When a standby takes over although the active coordinator has the lock.

A stopped process keeps its lock, and so does one whose mount hangs. Neither fences anybody or opens
a store for anybody. The active coordinator announces itself ten times a second, and says for how
long its present call of the storage has lasted. If it is silent, or its storage hangs, the standby
asks it over the shared file system (`questions.py`), and takes over if there is no answer.

- The standby must work itself: its own messages come back, it hears servers or other coordinators
  (without them it waits much longer), and its question is durable.
- A healthy coordinator that the standby cannot hear answers, so a cluster that splits does not
  change its coordinator, as long as the active one hears servers. Whoever has taken over announces
  itself, so several standbys do not depose each other.

Pure. All this is about when to act. That two coordinators may then run at once is made safe by the
order of their reads and writes: see `term.py`.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Final

from holdfast.protocol.limits import SILENCE_SECONDS

#: An active coordinator that has shown no work for this long is asked.
ASK_SECONDS: Final = 1.5
#: How long it has for the answer. It looks for questions much more often.
ANSWER_SECONDS: Final = 2.0
#: The same for a standby that hears nobody else. It may be the one that is cut off; or all servers
#: have ended, and those that start wait to be registered before they send heartbeats.
LONELY_SECONDS: Final = 10.0


class SuccessionStep(StrEnum):
    """What a standby does now."""

    #: There is no doubt, or a question is out that may still be answered.
    WAIT = "wait"
    ASK = "ask"
    TAKE_OVER = "take over"


class Succession:
    """What one standby knows of the active coordinator."""

    def __init__(self, now: float) -> None:
        #: When the active coordinator last showed that it works, or since when that is unknown.
        self._worked_at = now
        #: When a server or another coordinator was last heard.
        self._others_heard_at = -math.inf
        #: Since when a question has been durable that is not answered.
        self._asked_at: float | None = None

    def announced(self, storage_seconds: float, now: float) -> None:
        """The active coordinator said that its call of the storage has lasted for so long."""
        self._worked_at = max(self._worked_at, now - max(0.0, storage_seconds))
        self.others_heard(now)

    def others_heard(self, now: float) -> None:
        """A server or another coordinator was heard."""
        self._others_heard_at = now

    @property
    def is_asking(self) -> bool:
        """True if a question is out: the answer must be looked for before the next step."""
        return self._asked_at is not None

    def asked(self, now: float) -> None:
        """A question is durable."""
        self._asked_at = now

    def answered(self, now: float, *, hears_servers: bool) -> None:
        """The question was answered. One that nobody reaches is of no use where others are."""
        if hears_servers or not self._hears_others(now):
            self.start_over(now)

    def start_over(self, now: float) -> None:
        """The active coordinator works, or what is known about it counts no more: the bus
        reconnected, another standby took over, or this one's storage failed."""
        self._worked_at = now
        self._asked_at = None

    def silent_seconds(self, heard_until: float) -> float:
        """Return for how long the active coordinator has shown no work, as far as this standby has
        proof that it hears."""
        return max(0.0, heard_until - self._worked_at)

    def next_step(self, now: float, heard_until: float) -> SuccessionStep:
        """Return what to do, after the answer was looked for."""
        silent_seconds = self.silent_seconds(heard_until)
        if silent_seconds <= (ASK_SECONDS if self._hears_others(now) else LONELY_SECONDS):
            self._asked_at = None
            return SuccessionStep.WAIT
        if self._asked_at is None:
            return SuccessionStep.ASK
        if now - self._asked_at <= ANSWER_SECONDS or silent_seconds <= SILENCE_SECONDS:
            return SuccessionStep.WAIT
        return SuccessionStep.TAKE_OVER

    def _hears_others(self, now: float) -> bool:
        return now - self._others_heard_at <= SILENCE_SECONDS

"""Decide when to restart a part that ended, and when to give up. Pure.

    exit after the part ran for a while          restart soon
    exit soon after its start                    restart, each time twice as late, up to 5 s
    exit code 2 before it ever ran for a while   wrong usage: give up
    exit code 1 before it ever ran for a while   give up after three times in a row

A kill is never a reason to give up. Neither is the exit of a part that once ran, or that the
cluster has found at work: its configuration was right, so the reason (a full disk, NATS away) can
pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

#: A part that lived this long after its first word has read its configuration and joined. The time
#: before that word tells nothing: on a busy machine, starting Python alone takes seconds.
RAN_SECONDS: Final = 5.0
#: A part that has said nothing for this long after its start has started all the same: parts that
#: have nothing to complain of are silent.
SILENT_START_SECONDS: Final = 30.0
FIRST_DELAY_SECONDS: Final = 0.1
MAX_DELAY_SECONDS: Final = 5.0
MAX_FAILED_STARTS: Final = 3

_EXIT_FAILED: Final = 1
_EXIT_USAGE: Final = 2


class RestartVerdict(StrEnum):
    """What to do about a part that ended."""

    RESTART = "restart"
    GIVE_UP = "give_up"


@dataclass(frozen=True, slots=True)
class Decision:
    """`delay_seconds` is how long to wait before the restart."""

    verdict: RestartVerdict
    delay_seconds: float = 0.0


@dataclass(slots=True)
class RestartPolicy:
    """Decides about the restarts of one part, from its earlier exits."""

    _ever_ran: bool = field(default=False, init=False)
    _quick_exits: int = field(default=0, init=False)
    _failed_starts: int = field(default=0, init=False)

    def works(self) -> None:
        """Note that the part does its work: the cluster found that. A part may never say a word."""
        self._ever_ran = True

    def ended(self, exit_code: int, lived_seconds: float) -> Decision:
        """Return what to do now that the part ended; a signal's number is a negative code.

        `lived_seconds` is how long it lived after its first word.
        """
        if lived_seconds >= RAN_SECONDS:
            self._ever_ran = True
            self._quick_exits = 0
            return Decision(RestartVerdict.RESTART, FIRST_DELAY_SECONDS)
        if not self._ever_ran:
            self._failed_starts = self._failed_starts + 1 if exit_code == _EXIT_FAILED else 0
            if exit_code == _EXIT_USAGE or self._failed_starts >= MAX_FAILED_STARTS:
                return Decision(RestartVerdict.GIVE_UP)
        delay_seconds = min(FIRST_DELAY_SECONDS * 2.0**self._quick_exits, MAX_DELAY_SECONDS)
        # The delay stops growing long before the power of two overflows.
        self._quick_exits = min(self._quick_exits + 1, 16)
        return Decision(RestartVerdict.RESTART, delay_seconds)

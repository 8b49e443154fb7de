"""Callers in lockstep: how many of those that wait for the owner go there together.

Pure. Callers that are answered together ask again together. If the owner is asked for all of them
at once, then client, nats-server, gateway and owner work one after the other, and each waits for
the three others. If it is asked for one half and then for the other, one half of the callers are
answered while the other half ask.

A part costs a frame, a turn of the owner and wake-ups, whatever is in it. So there are two parts,
few callers are one part, and each part is sent to the owner before the next is made.
"""

from __future__ import annotations

from typing import Final

#: While so many are unanswered, what comes waits for the answer to one.
PARTS: Final = 2
#: So many always go together. With 64 callers of nats-py on two cores, parts of 16 and 24, of which
#: three or four may be unanswered, were slower than two of 32.
MIN_PART: Final = 32


def part_of(unanswered: int) -> int:
    """Return the most that go to the owner together, if so many are unanswered, with those that are
    there already."""
    return max(MIN_PART, (unanswered + 1) // 2)

"""Callers in lockstep: how many of those that wait for the owner go there together.

Pure. Callers that are answered together ask again together. If the owner is asked for all of them
at once, then client, nats-server, gateway and owner work one after the other, and each waits for
the three others. If it is asked for one half and then for the other, one half of the callers are
answered while the other half ask.

A part costs a frame, a turn of the owner and wake-ups, whatever is in it. So there are two parts,
few callers are one part, and each part is sent to the owner before the next is made.

An owner in the gateway's own process works only while the gateway does not. Two parts that are sent
to it would be answered together. So it has one at a time: its answers are on their way before the
next is asked for, and nats-py works meanwhile.
"""

from __future__ import annotations

from typing import Final

#: While so many are unanswered, what comes waits for the answer to one.
_PARTS: Final = 2
_PARTS_BESIDE_OWNER: Final = 1
#: So many always go together. With 64 callers of nats-py on two cores, parts of 16 and 24, of which
#: three or four may be unanswered, were slower than two of 32.
MIN_PART: Final = 32


def parts(*, beside_owner: bool) -> int:
    """Return how many parts may be unanswered."""
    return _PARTS_BESIDE_OWNER if beside_owner else _PARTS


def part_of(unanswered: int) -> int:
    """Return the most that go to the owner together, if so many are unanswered, with those that are
    there already."""
    return max(MIN_PART, (unanswered + 1) // 2)

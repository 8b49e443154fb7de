"""The verdict: what must hold while a tenant attacks. Pure.

No process ended and no server began another life; nobody was made to believe that a server leaves;
nothing came to anybody who had not asked for it; nothing of the other tenant came to the attacker;
and the other tenant never waited longer than a takeover may take. What the other tenant wrote, read
and followed is judged by the torture's checker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from holdfast.protocol.limits import (
    CONTROL_TIMEOUT_SECONDS,
    FRAME_TIMEOUT_SECONDS,
    PROBE_TIMEOUT_SECONDS,
    SILENCE_SECONDS,
)
from tests.hostile.watch import Evidence
from tests.torture.measure import Pause

#: The longest that a takeover makes a writer wait: a server's silence, the probe, a question that
#: was lost, a frame that was lost.
TAKEOVER_SECONDS: Final = (
    SILENCE_SECONDS + PROBE_TIMEOUT_SECONDS + CONTROL_TIMEOUT_SECONDS + FRAME_TIMEOUT_SECONDS
)
#: No server is taken over here, so this is not for the product but for machines with other work.
#: What it must tell apart are the 26 and 30 s of a cluster that was stopped.
LONGEST_PAUSE_SECONDS: Final = 3 * TAKEOVER_SECONDS


def judge(evidence: Evidence, pauses: Sequence[Pause], tracebacks: Mapping[str, int]) -> list[str]:
    """Return everything that is wrong. `pauses` are the longest of each store of the victim's."""
    wrong = [f"a process ended: {text}" for text in evidence.ended]
    for server, lives in sorted(evidence.incarnations.items()):
        if len(lives) > 1:
            wrong.append(f"a server began another life: {server} was {', '.join(sorted(lives))}")
    if not evidence.incarnations:
        wrong.append("nothing was seen of any server")
    for server, state in sorted(evidence.states):
        wrong.append(f"somebody was believed: {server} was said to be {state}")
    wrong += [f"readable by a stranger: {text}" for text in evidence.leaks]
    wrong += [f"came unasked: {text}" for text in evidence.misdirected]
    if evidence.misdirected_count > len(evidence.misdirected):
        wrong.append(f"came unasked: {evidence.misdirected_count} messages in all")
    if not pauses:
        wrong.append("the other tenant was never answered")
    for pause in pauses:
        if pause.seconds > LONGEST_PAUSE_SECONDS:
            wrong.append(f"a pause: {pause.store} waited {pause.seconds:.1f} s for an ack")
    wrong += [
        f"exceptions that nobody expected: {count} in the log of {part}"
        for part, count in sorted(tracebacks.items())
    ]
    return wrong

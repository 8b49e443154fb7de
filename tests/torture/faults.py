"""The faults: which, when and how hard, drawn from a seed; and what may be hit now. Pure.

Faults come in rounds. A round has every kind, alone and in pairs, in a new order, so that a short
run meets all of them. A pair never hits every server: one that is well is always left.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tests.support.checking.history import Store


class FaultKind(StrEnum):
    """What is done to which process."""

    KILL = "kill -9 of a persist server"
    PAUSE = "SIGSTOP of a persist server"
    RESTART = "planned restart of a persist server"
    COORDINATOR = "kill -9 of the active coordinator"
    NATS = "nats-server restart"

    @property
    def hits_server(self) -> bool:
        return self in (FaultKind.KILL, FaultKind.PAUSE, FaultKind.RESTART)


ROUND: Final[tuple[tuple[FaultKind, ...], ...]] = (
    (FaultKind.KILL,),
    (FaultKind.KILL,),
    (FaultKind.PAUSE,),
    (FaultKind.PAUSE,),
    (FaultKind.RESTART,),
    (FaultKind.COORDINATOR,),
    (FaultKind.NATS,),
    (FaultKind.KILL, FaultKind.PAUSE),
    (FaultKind.KILL, FaultKind.COORDINATOR),
    (FaultKind.PAUSE, FaultKind.NATS),
    (FaultKind.KILL, FaultKind.KILL),
    (FaultKind.RESTART, FaultKind.PAUSE),
)
PAUSE_SECONDS: Final = (1.0, 8.0)
#: Half of the pauses end about when the coordinator fences (SILENCE_SECONDS and a probe): then the
#: one that wakes up meets clients that still wait for it.
FENCING_SECONDS: Final = (2.3, 3.6)
REST_SECONDS: Final = (0.5, 3.0)
#: Before and after a kill that is to be measured by itself.
CALM_SECONDS: Final = (3.2, 4.5)


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault to come. `pick` in 0..1 chooses among the servers that are well by then."""

    kind: FaultKind
    pick: float
    #: Of a PAUSE.
    pause_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Strike:
    """Faults that come at once, after `rest_seconds`."""

    faults: tuple[PlannedFault, ...]
    rest_seconds: float

    @property
    def is_calm(self) -> bool:
        """A kill alone waits until all is well, and has time to be measured."""
        return [fault.kind for fault in self.faults] == [FaultKind.KILL]

    @property
    def servers_hit(self) -> int:
        return sum(fault.kind.hits_server for fault in self.faults)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault that was: of a `FaultKind`, or of what else strikes. `stores` are those that a
    killed server owned. Monotonic seconds."""

    kind: StrEnum
    target: str
    at: float
    until: float
    stores: tuple[Store, ...] = ()


def strikes(seed: int) -> Iterator[Strike]:
    """Yield what to do, for ever."""
    rng = random.Random(seed)
    after_calm = False
    while True:
        for kinds in rng.sample(ROUND, len(ROUND)):
            faults = tuple(_plan(kind, rng) for kind in kinds)
            rest = rng.uniform(*REST_SECONDS)
            strike = Strike(faults, rest)
            if strike.is_calm or after_calm:
                strike = Strike(faults, rng.uniform(*CALM_SECONDS))
            after_calm = strike.is_calm
            yield strike


def _plan(kind: FaultKind, rng: random.Random) -> PlannedFault:
    pause_seconds = rng.uniform(*rng.choice((PAUSE_SECONDS, FENCING_SECONDS)))
    return PlannedFault(kind, rng.random(), pause_seconds)


def choose(strike: Strike, well: Sequence[str], server_count: int) -> list[str] | None:
    """Return the server that each fault hits ("" where it hits none), or None while that would
    leave no server that is well, or while it is not calm enough."""
    if strike.servers_hit and strike.servers_hit >= len(well):
        return None
    if strike.is_calm and len(well) < server_count:
        return None
    left = sorted(well)
    chosen = []
    for fault in strike.faults:
        if fault.kind.hits_server:
            chosen.append(left.pop(int(fault.pick * len(left))))
        else:
            chosen.append("")
    return chosen

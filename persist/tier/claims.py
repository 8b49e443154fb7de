"""The cold work that an incarnation has claimed, and may do.

    ask the coordinator ──▶ held ──▶ doing a piece ──▶ check before each step that harms

Every few seconds the coordinator is told what this server offers to do, and answers what it has.
Invariants:

- A piece that is being done is given back only when it is done, or when this life ends.
- Once a piece was given back it is never done in the same epoch again, whatever an answer says: the
  request that gave it back may arrive late, and twice.
- A step is made only after `check`, which reads the fence. The coordinator gives a piece to another
  server only after this incarnation was fenced, or has given it back. So of a server that is
  stopped for long, at most the step that it was about to make still happens; each piece says why
  that one does no harm.

While the coordinator is away, what was claimed stays claimed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.life_phase import LifePhase
from holdfast.persist.peers.coordination import Coordination
from holdfast.protocol.control import ServerPhase
from holdfast.protocol.errors import (
    FencedError,
    HoldfastError,
    StorageError,
    UnavailableError,
    UnknownOperationError,
)
from holdfast.protocol.serving.trouble import Trouble
from holdfast.shared_fs.disk.fence import FenceGate

logger = logging.getLogger("holdfast.persist")

#: Between two questions. What a dead server did is taken over this long after its fence.
CLAIM_SECONDS: Final = 3.0


class ClaimLostError(HoldfastError):
    """A piece of work is no longer this server's. Never leaves the server."""

    code = "claim_lost"
    template = "the work {work} is no longer claimed in epoch {epoch}"


class Claimed:
    """A piece of work that this incarnation is doing. Any thread may use it."""

    def __init__(self, claims: Claims, work: str, epoch: int) -> None:
        self.work = work
        self.epoch = epoch
        self._claims = claims

    def check(self) -> None:
        """Return if the next step may be made. Raises ClaimLostError, FencedError, StorageError."""
        self._claims.check(self.work, self.epoch)

    def is_lost(self) -> bool:
        """Tell whether no further step may be made. If the fence cannot be read, none may."""
        try:
            self.check()
        except (ClaimLostError, StorageError):
            return True
        return False


class Claims:
    """The claims of one incarnation. `run` them in a task."""

    def __init__(
        self,
        life: Incarnation,
        phase: LifePhase,
        coordination: Coordination,
        offers: Sequence[str],
    ) -> None:
        """`offers` is the work that this server can do, empty if it has not the role."""
        self._server = life.server
        self._gate: FenceGate = life.gate
        self._phase = phase
        self._coordination = coordination
        self._offers = offers
        self._held: dict[str, int] = {}
        self._wanted: frozenset[str] = frozenset()
        #: In which epoch a piece was given back last.
        self._given_back: dict[str, int] = {}
        self._doing: Counter[str] = Counter()
        self._failing = Trouble(logger, "work.claim_failed")

    @property
    def count(self) -> int:
        """How many pieces this server has."""
        return len(self._held)

    @contextlib.contextmanager
    def doing(self, *works: str) -> Iterator[dict[str, Claimed]]:
        """Do those of these pieces that this server has, meanwhile. They may be none."""
        mine = {} if self._phase.opens_nothing else {
            work: Claimed(self, work, epoch)
            for work in works
            if (epoch := self._held.get(work)) is not None and work not in self._wanted
        }
        self._doing.update(mine.keys())
        try:
            yield mine
        finally:
            self._doing.subtract(mine.keys())

    def check(self, work: str, epoch: int) -> None:
        """As `Claimed.check`."""
        if self._held.get(work) != epoch or self._phase.now is ServerPhase.STOPPING:
            raise ClaimLostError(work=work, epoch=epoch)
        self._gate.check()

    async def run(self) -> None:
        """Ask until cancelled. FencedError ends the incarnation."""
        while self._offers:
            try:
                await self.ask()
            except FencedError:
                raise
            except (UnavailableError, StorageError, UnknownOperationError) as error:
                # A coordinator of an earlier version knows no claims: it is asked again.
                self._failing.note("server=%s reason=%s", self._server, error)
            else:
                self._failing.over()
            await asyncio.sleep(CLAIM_SECONDS)

    async def ask(self) -> None:
        """Give back what is wanted, and hear what this server has. Raises UnavailableError,
        FencedError, UnknownOperationError."""
        leaves = self._phase.opens_nothing
        for work in list(self._held):
            if (leaves or work in self._wanted) and not self._doing[work]:
                self._given_back[work] = self._held.pop(work)
        gives_back = list(self._given_back.items())
        offers = () if leaves else self._offers
        claims, wanted = await self._coordination.claim(offers, gives_back)
        held = {
            work: epoch
            for work, epoch in claims.items()
            if epoch > self._given_back.get(work, -1)
        }
        self._given_back = {
            work: epoch for work, epoch in self._given_back.items() if work not in held
        }
        if held.keys() != self._held.keys():
            logger.info(
                "work.claimed server=%s works=%s", self._server, ",".join(sorted(held)) or "none"
            )
        self._held, self._wanted = held, frozenset(wanted)

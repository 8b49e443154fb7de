"""The recorded claims on cold work: who does what, and since which epoch."""

from __future__ import annotations

from typing import Final

from holdfast.coordinator.decisions.claims import Holder, WorkClaim
from holdfast.coordinator.state.cluster_record import Execute

# `claims` has a row for each of a few works.
_ALL: Final = """SELECT work, claims.server, claims.incarnation, epoch, state IS 'present'
    FROM claims LEFT JOIN incarnations USING (server, incarnation)"""
_TAKE: Final = """INSERT INTO claims VALUES (?, ?, ?, ?) ON CONFLICT(work) DO UPDATE SET
    server = excluded.server, incarnation = excluded.incarnation, epoch = excluded.epoch"""
_GIVE_BACK: Final = """UPDATE claims SET server = '', incarnation = ''
    WHERE work = ? AND server = ? AND incarnation = ? AND epoch = ?"""


class ClaimRecords:
    """Reads and writes the claims, always within a transaction."""

    def __init__(self, execute: Execute) -> None:
        self._execute = execute

    def all(self) -> dict[str, WorkClaim]:
        """Return the claim of each work that ever had one. A holder that has ended is none."""
        return {
            work: WorkClaim(Holder(server, incarnation) if is_present else None, epoch)
            for work, server, incarnation, epoch, is_present in self._execute(_ALL, ())
        }

    def take(self, work: str, holder: Holder, epoch: int) -> None:
        """Record the next holder of a work."""
        self._execute(_TAKE, (work, *holder, epoch))

    def give_back(self, work: str, holder: Holder, epoch: int) -> None:
        """Record that nobody has a work, if that is still the holder's."""
        self._execute(_GIVE_BACK, (work, *holder, epoch))

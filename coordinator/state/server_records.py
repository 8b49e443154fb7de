"""The recorded servers: their incarnations, and which servers an operator has drained."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from holdfast.coordinator.state.cluster_record import Execute
from holdfast.coordinator.state.promised_stores import PromisedStores
from holdfast.protocol.control import StoreState


class IncarnationState(StrEnum):
    """The recorded state of an incarnation. These words are in the file: never rename them."""

    PRESENT = "present"
    #: Fenced.
    DEAD = "dead"
    #: Ended by itself, after it released everything.
    RELEASED = "released"


# The primary keys and `incarnations_present` serve all of these, `stores_unwritten` the last two.
_DRAINS: Final = "SELECT server FROM drains"
_ADD_DRAIN: Final = "INSERT INTO drains VALUES (?) ON CONFLICT DO NOTHING"
_DELETE_DRAIN: Final = "DELETE FROM drains WHERE server = ?"
_PRESENT: Final = (
    "SELECT server, incarnation, assigned_stores FROM incarnations WHERE state = 'present'"
)
# Ordered by id, which is the order of registration; read once, at the start.
_ENDED: Final = """SELECT server, incarnation FROM incarnations WHERE state <> 'present'
    ORDER BY id DESC LIMIT ?"""
_INCARNATION: Final = (
    "SELECT state, assigned_stores FROM incarnations WHERE server = ? AND incarnation = ?"
)
_ADD_INCARNATION: Final = """INSERT INTO incarnations(server, incarnation, state, registered_ms)
    VALUES (?, ?, 'present', ?) ON CONFLICT DO NOTHING"""
_END_INCARNATION: Final = """INSERT INTO incarnations(
        server, incarnation, state, registered_ms, ended_ms) VALUES (?1, ?2, ?3, ?4, ?4)
    ON CONFLICT DO UPDATE SET state = excluded.state, ended_ms = excluded.ended_ms
    WHERE state = 'present'"""
#: The sum over the incarnations of a server that were fenced: those that released their stores, or
#: left them behind when they were vacated, have none. Read when an operator asks.
_ASSIGNED_TO_DEAD: Final = """SELECT coalesce(sum(assigned_stores), 0) FROM incarnations
    WHERE server = ? AND state = 'dead'"""
_GIVE_UP: Final = "UPDATE incarnations SET state = 'released' WHERE server = ? AND state = 'dead'"
_FORGOTTEN: Final = "SELECT server FROM forgotten"
_ADD_FORGOTTEN: Final = "INSERT INTO forgotten VALUES (?) ON CONFLICT DO NOTHING"
_DELETE_FORGOTTEN: Final = "DELETE FROM forgotten WHERE server = ?"
# An incarnation's name never contains a dot, so the new name cannot be one.
_RETIRE: Final = """UPDATE incarnations
    SET incarnation = incarnation || '.' || ?3, state = 'released', ended_ms = ?4
    WHERE server = ?1 AND incarnation = ?2 AND state = 'present' AND NOT EXISTS (
        SELECT 1 FROM incarnations WHERE server = ?1 AND incarnation = ?2 || '.' || ?3)
    RETURNING id"""
_FORGET_EPOCH_OF: Final = f"""UPDATE cluster SET forgotten_epoch = max(forgotten_epoch, (
        SELECT coalesce(max(epoch), 0) FROM stores
        WHERE state = {StoreState.UNKNOWN:d} AND owner = (
            SELECT id FROM incarnations WHERE server = ?1 AND incarnation = ?2)))"""
_FORGET_OF: Final = f"""DELETE FROM stores WHERE state = {StoreState.UNKNOWN:d} AND owner = (
        SELECT id FROM incarnations WHERE server = ?1 AND incarnation = ?2)"""


class ServerRecords:
    """Reads and writes the records of the servers, always within a transaction."""

    def __init__(self, execute: Execute, promised: PromisedStores) -> None:
        self._execute = execute
        self._promised = promised
        #: How many ends were recorded in this term, counting those whose transaction failed.
        self.ended_count = 0

    def present(self) -> dict[tuple[str, str], int]:
        """Return the number of assigned stores of each present (server, incarnation)."""
        promised = self._promised.counts()
        return {
            (server, incarnation): count + promised[server, incarnation]
            for server, incarnation, count in self._execute(_PRESENT, ())
        }

    def ended(self, limit: int) -> list[tuple[str, str]]:
        """Return the newest `limit` incarnations that ended, oldest first."""
        return [(row[0], row[1]) for row in self._execute(_ENDED, (limit,))][::-1]

    def get(self, server: str, incarnation: str) -> tuple[IncarnationState, int] | None:
        """Return the state and the number of assigned stores; None for an unknown incarnation."""
        for state, count in self._execute(_INCARNATION, (server, incarnation)):
            return IncarnationState(state), count
        return None

    def add(self, server: str, incarnation: str, now_ms: int) -> None:
        """Record an incarnation as present. If it is recorded already, nothing changes."""
        self._execute(_ADD_INCARNATION, (server, incarnation, now_ms))
        self._execute(_DELETE_FORGOTTEN, (server,))

    def end(self, server: str, incarnation: str, state: IncarnationState, now_ms: int) -> None:
        """Record for ever that an incarnation ended.

        Its stores keep their rows, except those never written to; it had at most some of them open.
        """
        self.ended_count += 1
        self._execute(_FORGET_EPOCH_OF, (server, incarnation))
        self._execute(_FORGET_OF, (server, incarnation))
        self._execute(_END_INCARNATION, (server, incarnation, state.value, now_ms))

    def vacate(self, server: str, incarnation: str, number: int, now_ms: int) -> None:
        """Record that a present incarnation released all its stores and lives on.

        Does nothing for a `number` that was used already. O(1): the stores keep pointing to the old
        row, which now has ended.
        """
        if self._execute(_RETIRE, (server, incarnation, number, now_ms)):
            self._execute(_ADD_INCARNATION, (server, incarnation, now_ms))

    def drains(self) -> set[str]:
        """Return the servers that an operator has drained."""
        return {server for (server,) in self._execute(_DRAINS, ())}

    def set_drain(self, server: str, draining: bool) -> None:
        """Record that a server is drained, or no longer."""
        self._execute(_ADD_DRAIN if draining else _DELETE_DRAIN, (server,))

    def assigned_to_dead(self, server: str) -> int:
        """Return how many stores are recorded as owned by fenced incarnations of a server."""
        for (count,) in self._execute(_ASSIGNED_TO_DEAD, (server,)):
            return int(count)
        return 0

    def forget(self, server: str) -> None:
        """Record that a dead server is no longer listed, until it registers again.

        O(1): what its fenced incarnations own belongs to nobody then. Their own records stay, since
        an incarnation that ended has ended for ever.
        """
        self._execute(_GIVE_UP, (server,))
        self._execute(_DELETE_DRAIN, (server,))
        self._execute(_ADD_FORGOTTEN, (server,))

    def forgotten(self) -> set[str]:
        """Return the servers that are no longer listed."""
        return {server for (server,) in self._execute(_FORGOTTEN, ())}

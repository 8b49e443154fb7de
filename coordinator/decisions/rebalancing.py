"""Decides which stores move to other servers, so that all servers do about the same. Pure.

`choose_moves` makes a list of moves from the loads of the servers. `Rebalancing` decides when to
look, when to begin and when to end, and remembers what is under way. Invariants:

- A move makes its two servers more alike: it takes at most MAX_GAP_SHARE of what lies between them.
  So for loads that stay as they are, a run ends, and no store goes back.
- At most `moves_per_minute` moves begin within any minute.
- A store that was moved stays where it is for REST_SECONDS.
- No store moves to another zone.
- A run that nobody asked for begins only above `begin_imbalance`, and ends at `imbalance`. Loads
  that vary by less than what lies between these two move nothing.
- The next look at the loads comes when the last move is out of the window in which they are
  counted. Nothing is decided from loads that a move under way still changes.

A run ends when no server has more than `imbalance` times the mean, or when no store of the busier
servers fits: the rest is in stores too large to move, or in too many small ones.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from holdfast.protocol.control import ServerLoad, StoreLoad
from holdfast.protocol.limits import (
    LOAD_OPEN_STORES,
    LOAD_WINDOW_SECONDS,
    MAX_HOT_STORES,
    MOVE_PATIENCE_SECONDS,
)
from holdfast.protocol.names import StoreId

#: A store is moved if it has at most this share of the load between the two servers. If the other
#: one has more afterwards, then by at most half of what lay between them.
MAX_GAP_SHARE: Final = 0.75
#: A store with less load is not worth a pause.
LEAST_STORE_LOAD: Final = 1.0
#: A store that was moved is not moved again for this time.
REST_SECONDS: Final = 300.0
#: How often loads are looked at while everything is even.
LOOK_SECONDS: Final = LOAD_WINDOW_SECONDS
#: An order that was not carried out in this time has failed: the server has dropped it.
ORDER_SECONDS: Final = MOVE_PATIENCE_SECONDS + 5.0
_MINUTE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """How even loads are to be, and what that may cost."""

    #: Each move is a pause of its store.
    moves_per_minute: int = 60
    #: A run ends when no server has more than so many times the mean load.
    imbalance: float = 1.2
    #: Without being asked for, a run begins only if the busiest server has at least this load, in
    #: operations a second. Below, nobody waits for it: a server does ten times as many.
    least_load: float = 1000.0

    @property
    def begin_imbalance(self) -> float:
        """Above this, a run begins without being asked for."""
        return 1.0 + 2.5 * (self.imbalance - 1.0)


@dataclass(frozen=True, slots=True)
class Balance:
    """What an operator wants of a coordinator."""

    #: Runs begin by themselves.
    automatic: bool = False
    bounds: Bounds = Bounds()


class Move(NamedTuple):
    """A store that is to have another owner."""

    store: StoreId
    source: str
    #: The incarnation that has it.
    incarnation: str
    epoch: int
    target: str
    #: What moves with it.
    load: float


class _Source:
    """The stores of a server that may be moved, by their loads."""

    def __init__(self, load: ServerLoad, resting: Container[StoreId]) -> None:
        self.server = load.server
        self.incarnation = load.incarnation
        self._stores: list[tuple[float, StoreId, int]] = sorted(
            (_weight(each), each.store, each.epoch)
            for each in load.hot
            if each.load >= LEAST_STORE_LOAD and each.store not in resting
        )

    def take(self, ideal: float, most: float) -> tuple[float, StoreId, int] | None:
        """Take the largest store up to `ideal`, else the smallest up to `most`."""
        at = bisect.bisect_right(self._stores, ideal, key=lambda each: each[0])
        if at > 0:
            return self._stores.pop(at - 1)
        if self._stores and self._stores[0][0] <= most:
            return self._stores.pop(0)
        return None


def _weight(store: StoreLoad) -> float:
    """Return what a server has less of once the store has left."""
    return store.load + 1 / LOAD_OPEN_STORES


def imbalance_of(loads: Sequence[ServerLoad]) -> float:
    """Return the load of the busiest server, divided by the mean of its zone; 1 if nobody does
    anything. Of several zones, the most uneven one counts."""
    return max((_imbalance_within(zone) for zone in _by_zone(loads)), default=1.0)


def _imbalance_within(loads: Sequence[ServerLoad]) -> float:
    total = sum(each.load for each in loads)
    return max(each.load for each in loads) * len(loads) / total if total else 1.0


def _by_zone(loads: Sequence[ServerLoad]) -> list[list[ServerLoad]]:
    zones: dict[str, list[ServerLoad]] = {}
    for each in loads:
        zones.setdefault(each.zone, []).append(each)
    return [zones[zone] for zone in sorted(zones)]


def choose_moves(
    loads: Sequence[ServerLoad],
    imbalance: float,
    limit: int,
    resting: Container[StoreId] = frozenset(),
) -> list[Move]:
    """Return up to `limit` moves after which no server has more than `imbalance` times the mean
    load of its zone, or as near to that as they come. Stores that are `resting` stay; none leaves
    its zone, near which its clients are."""
    moves: list[Move] = []
    for zone in _by_zone(loads):
        moves += _moves_within(zone, imbalance, limit - len(moves), resting)
    return moves


def _moves_within(
    loads: Sequence[ServerLoad],
    imbalance: float,
    limit: int,
    resting: Container[StoreId],
) -> list[Move]:
    if len(loads) < 2:
        return []
    levels = {each.server: each.load for each in loads}
    sources = {each.server: _Source(each, resting) for each in loads}
    mean = sum(levels.values()) / len(levels)
    moves: list[Move] = []
    while len(moves) < limit:
        target = min(levels, key=lambda server: (levels[server], server))
        above = [server for server in levels if levels[server] > mean * imbalance]
        for server in sorted(above, key=lambda each: (-levels[each], each)):
            gap = levels[server] - levels[target]
            ideal = min(levels[server] - mean, mean - levels[target])
            taken = sources[server].take(ideal, MAX_GAP_SHARE * gap)
            if taken is not None:
                break
        else:
            return moves
        weight, store, epoch = taken
        levels[server] -= weight
        levels[target] += weight
        source = sources[server]
        moves.append(Move(store, server, source.incarnation, epoch, target, weight))
    return moves


class Rebalancing:
    """The rebalancing of one term. Times are monotonic seconds."""

    def __init__(self, balance: Balance) -> None:
        self.bounds = balance.bounds
        self._automatic = balance.automatic
        #: A run is under way; it has moved, and failed to move, so many stores.
        self.running = False
        self.moved_count = 0
        self.failed_count = 0
        #: When the orders that are under way have failed.
        self._under_way: dict[StoreId, float] = {}
        #: When stores were moved, the first one first.
        self._moved_at: dict[StoreId, float] = {}
        #: When the moves of the last minute began.
        self._begun_at: deque[float] = deque()
        self._look_at = 0.0

    def begin(self, now: float) -> None:
        """Begin a run, since an operator asks for it. One that is under way goes on."""
        if not self.running:
            self._begin_run()
            self._look_at = now

    def due(self, now: float) -> bool:
        """Tell whether to ask the servers for their loads, and then to decide."""
        for store, failed_at in list(self._under_way.items()):
            if now >= failed_at:
                self.failed(store, now)
        return (
            (self.running or self._automatic) and not self._under_way and now >= self._look_at
        )

    def decide(self, loads: Sequence[ServerLoad], now: float) -> list[Move]:
        """Return the moves to make now. `moved` or `failed` follows for each, or time passes."""
        self._look_at = now + LOOK_SECONDS
        if not self.running:
            if len(loads) < 2 or not self._is_uneven(loads):
                return []
            self._begin_run()
        self._forget(now)
        limit = self.bounds.moves_per_minute - len(self._begun_at)
        if limit <= 0:
            self._look_at = max(now, self._begun_at[0] + _MINUTE_SECONDS)
            return []
        moves = self.proposed(loads, limit)
        if not moves:
            self.running = False
        for move in moves:
            self._under_way[move.store] = now + ORDER_SECONDS
            self._begun_at.append(now)
        return moves

    def proposed(self, loads: Sequence[ServerLoad], limit: int | None = None) -> list[Move]:
        """Return the moves that would be made, at most those of a minute, and change nothing."""
        limit = self.bounds.moves_per_minute if limit is None else limit
        most = min(limit, MAX_HOT_STORES)
        return choose_moves(loads, self.bounds.imbalance, most, self._moved_at)

    def moved(self, store: StoreId, now: float) -> None:
        """Note that a store has its new owner. It may be one that an operator has moved."""
        self._moved_at.pop(store, None)
        self._moved_at[store] = now
        if self._under_way.pop(store, None) is not None:
            self.moved_count += 1
            self._look_at = now + LOAD_WINDOW_SECONDS

    def failed(self, store: StoreId, now: float) -> None:
        """Note that a store stays where it is. It is left alone for a while, too."""
        if self._under_way.pop(store, None) is not None:
            self.failed_count += 1
            self._moved_at.pop(store, None)
            self._moved_at[store] = now
            self._look_at = now + LOAD_WINDOW_SECONDS

    def _begin_run(self) -> None:
        self.running = True
        self.moved_count = self.failed_count = 0

    def _is_uneven(self, loads: Sequence[ServerLoad]) -> bool:
        busiest = max(each.load for each in loads)
        return (
            busiest >= self.bounds.least_load
            and imbalance_of(loads) > self.bounds.begin_imbalance
        )

    def _forget(self, now: float) -> None:
        while self._begun_at and self._begun_at[0] <= now - _MINUTE_SECONDS:
            self._begun_at.popleft()
        for store, at in list(self._moved_at.items()):
            if at > now - REST_SECONDS:
                break
            del self._moved_at[store]

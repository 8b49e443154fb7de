"""Which shards a gateway holds: it asks for what hashes to it, and gives up what others ask for.

Pure: events in, effects out. A gateway that finds itself to be that of a shard asks every other
live gateway to give it up; each answers once it serves no stream of it any more, at once if it
never did. Then the shard is held, and its streams are served. Who does not answer in time is passed
over.

Two gateways may hold a shard while their views differ, a message is lost or one hangs. That is
safe, because only one of them has the serving epoch of a stream. It is not for long: whoever asks
is heard, and so gets into the view of whoever is asked; and who holds what hashes to another tells
it so, which then asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.gateway.jetstream.serving.shards import ShardTable

#: How long a gateway that is asked for shards may finish what it has begun. Then the serving epoch
#: decides.
RELEASE_SECONDS: Final = 2.0
#: Shards that are asked for in one round. Nobody serves the streams of these until they have all
#: been given up and begun again, so a round is small.
SHARDS_AT_A_TIME: Final = 64
#: What is held or missing contrary to the hashes is mended after so long: the views of two gateways
#: differ, and each should hear the other first; or a message was lost.
_AGAIN_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class AskRelease:
    """Ask a gateway for shards, by this number. The answer to 0 is not waited for."""

    gateway: str
    number: int
    shards: frozenset[int]


@dataclass(frozen=True, slots=True)
class Serve:
    """Begin to serve the streams of these shards."""

    shards: frozenset[int]


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Stop serving the streams of these shards, and then answer the gateway that asked."""

    shards: frozenset[int]
    gateway: str
    number: int


@dataclass(frozen=True, slots=True)
class Offer:
    """Tell a gateway that this one holds shards which hash to it, so that it asks for them."""

    gateway: str
    shards: frozenset[int]


Effect = AskRelease | Serve | GiveUp | Offer


class ShardKeeper:
    """What one gateway holds, has asked for, and is asked for."""

    def __init__(self, own: str) -> None:
        self.own = own
        self.table = ShardTable(())
        #: The shards whose streams this gateway serves.
        self.held: frozenset[int] = frozenset()
        #: The gateways that may hold what is missing.
        self._others: set[str] = set()
        self._asked: frozenset[int] = frozenset()
        self._unanswered: set[str] = set()
        self._number = 0
        self._give_up_at = float("inf")
        self._again_at = float("-inf")

    @property
    def wake_at(self) -> float:
        """When `tick` has something to do."""
        if self._asked:
            return self._give_up_at
        return self._again_at if self._missing() or self._surplus() else float("inf")

    @property
    def asking(self) -> bool:
        """Whether shards are asked for."""
        return bool(self._asked)

    def view(self, live: Sequence[str], now: float, leaving: Sequence[str] = ()) -> list[Effect]:
        """These gateways are alive, and these others leave: they have shards to give up."""
        self.table = ShardTable(live)
        self._others = {*live, *leaving} - {self.own}
        self._again_at = now + _AGAIN_SECONDS
        return self._ask(now)

    def answered(self, gateway: str, number: int, now: float) -> list[Effect]:
        """A gateway has given up the shards that it was asked for by this number."""
        if number != self._number or not self._asked:
            return []
        self._unanswered.discard(gateway)
        return self._take(now) if not self._unanswered else []

    def asked(self, gateway: str, number: int, shards: Iterable[int], now: float) -> list[Effect]:
        """Another gateway asks for shards."""
        wanted = frozenset(shards)
        given = self.held & wanted
        self.held -= given
        self._asked -= wanted
        self._again_at = now + _AGAIN_SECONDS
        return [GiveUp(given, gateway, number)]

    def lost(self, shard: int, now: float) -> None:
        """Another gateway has begun to serve a stream of a shard that this one held: it is asked
        for the shard, if that hashes here, and not fought for."""
        self.held -= {shard}
        self._again_at = now + _AGAIN_SECONDS

    def offered(self, gateway: str, shards: Iterable[int], now: float) -> list[Effect]:
        """Another gateway holds shards that hash here, by its view."""
        offered = frozenset(shards) & self.table.shards_of(self.own)
        if not offered or self._asked:
            return []
        if offered - self.held:
            return self._ask(now)
        return [AskRelease(gateway, 0, offered)]

    def tick(self, now: float) -> list[Effect]:
        """Time has passed: pass over whoever does not answer, and mend what is not as it should
        be."""
        if self._asked:
            if now < self._give_up_at:
                return []
            # They are waited for once.
            self._others -= self._unanswered
            return self._take(now)
        if now < self._again_at:
            return []
        self._again_at = now + _AGAIN_SECONDS
        effects: list[Effect] = self._ask(now) if self._missing() else []
        surplus = self._surplus()
        for gateway in self.table.gateways if surplus else ():
            shards = surplus & self.table.shards_of(gateway)
            if shards:
                effects.append(Offer(gateway, shards))
        return effects

    def _missing(self) -> frozenset[int]:
        return self.table.shards_of(self.own) - self.held

    def _surplus(self) -> frozenset[int]:
        return self.held - self.table.shards_of(self.own) if self.table.gateways else frozenset()

    def _ask(self, now: float) -> list[Effect]:
        """Begin a round of questions; the answers to earlier ones do not count any more."""
        self._number += 1
        missing = self._missing()
        self._unanswered = set(self._others)
        self._give_up_at = now + RELEASE_SECONDS
        self._asked = missing
        if not self._unanswered:
            return self._take(now) if missing else []
        if len(missing) > SHARDS_AT_A_TIME:
            self._asked = frozenset(sorted(missing)[:SHARDS_AT_A_TIME])
        if not self._asked:
            return []
        return [AskRelease(each, self._number, self._asked) for each in sorted(self._unanswered)]

    def _take(self, now: float) -> list[Effect]:
        """Hold what was asked for, and ask for more."""
        taken, self._asked = self._asked, frozenset()
        self.held |= taken
        return [Serve(taken), *(self._ask(now) if self._missing() else ())]

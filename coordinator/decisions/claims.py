"""Decides which server does which piece of cold work. Pure.

Servers with the role `tier` or `archive` ask again and again, and say what they offer to do.
Invariants:

- A claim passes to another server only when its holder's incarnation has ended (it is fenced, or
  has released everything), or has given it back. So what makes the owner of a store safe makes
  claims safe too: whoever reads its fence before each step does nothing as a zombie.
- The epoch of a work grows with each change of its holder, also when the state was lost in between:
  it is at least that of the term.
- What is free is taken by the next one that asks, up to its share; beyond it, if nobody with a
  smaller share offers to do it. Who has more than its share is asked to give some back.

A server that offers something and then asks no more keeps nothing from the others: it counts as a
rival only for a while. That is a matter of when to act. Safety rests on the first rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from holdfast.coordinator.decisions.member import MemberView
from holdfast.protocol.control import ServerState
from holdfast.protocol.work.roles import Role

#: A server that has not asked for so long leaves free work to others. Servers ask every few
#: seconds.
RIVAL_MS: Final = 15_000
#: Epochs of claims in one term, before they run into those of the next. Terms have 48 bits.
_EPOCHS_OF_TERM: Final = 1 << 14
#: The roles whose work is claimed. What of it a server can do, it offers.
_WORKING: Final = frozenset((Role.TIER, Role.ARCHIVE))


class Holder(NamedTuple):
    """The incarnation of a server."""

    server: str
    incarnation: str


class WorkClaim(NamedTuple):
    """Who has a piece of work, and since which epoch; None: nobody, and that was the last one."""

    holder: Holder | None
    epoch: int


@dataclass(frozen=True, slots=True)
class Division:
    """What the server that asks gets from now on, and what it is to give back when it can."""

    takes: list[str]
    wanted: list[str]


def next_epoch(last: WorkClaim | None, term: int) -> int:
    """Return the epoch of the next holder of a work."""
    return max(term * _EPOCHS_OF_TERM, last.epoch + 1 if last is not None else 0)


def takes_work(member: MemberView) -> bool:
    """Tell whether a server may be given cold work."""
    return member.state is ServerState.LIVE and not _WORKING.isdisjoint(member.roles)


def divide(
    asker: Holder,
    offers: frozenset[str],
    claims: Mapping[str, WorkClaim],
    rivals: Mapping[Holder, frozenset[str]],
) -> Division:
    """Decide what a server that may be given work gets. `rivals` are the others, with what each
    offers to do."""
    counts = dict.fromkeys((asker, *rivals), 0)
    for claim in claims.values():
        if claim.holder in counts:
            counts[claim.holder] += 1
    works = offers.union(*rivals.values())
    share = -(-len(works) // len(counts))

    def others_want(work: str) -> bool:
        return any(work in rivals[each] and counts[each] < share for each in rivals)

    takes: list[str] = []
    for work in sorted(offers):
        known = claims.get(work)
        is_free = known is None or known.holder is None
        if is_free and (counts[asker] < share or not others_want(work)):
            takes.append(work)
            counts[asker] += 1
    wanted: list[str] = []
    for work in sorted(work for work, claim in claims.items() if claim.holder == asker):
        if counts[asker] - len(wanted) > share and others_want(work):
            wanted.append(work)
    return Division(takes, wanted)


class ClaimBook:
    """What the servers of one term offer to do. Times are milliseconds."""

    def __init__(self) -> None:
        self._offers: dict[Holder, tuple[frozenset[str], int]] = {}

    def asked(self, asker: Holder, offers: frozenset[str], now_ms: int) -> None:
        """Note what a server offers to do."""
        self._offers[asker] = offers, now_ms

    def rivals(
        self, asker: Holder, members: Iterable[MemberView], now_ms: int
    ) -> dict[Holder, frozenset[str]]:
        """Return the others that may be given work, with what they offered lately."""
        able = {Holder(each.server, each.incarnation) for each in members if takes_work(each)}
        self._offers = {each: told for each, told in self._offers.items() if each in able}
        return {
            each: offers
            for each, (offers, asked_ms) in self._offers.items()
            if each != asker and abs(now_ms - asked_ms) < RIVAL_MS
        }

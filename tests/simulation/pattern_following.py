"""Followers of a pattern of streams, and writers by whom those streams are born, in a run with
faults.

What a follower is given of each stream is noted as a `Following` of that stream, so the checker
judges it as it does any other: each change once, in order, from the first of what was born
meanwhile."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from holdfast.client.connection import Client
from holdfast.client.following.pattern import PatternSubscription, StoreChange
from holdfast.client.following.pattern_feed import StoreFeed
from holdfast.client.following.track import OUTAGES
from holdfast.protocol.errors import NotAllowedError
from holdfast.protocol.names import StoreKind, matches
from tests.simulation.workload import Application, last_value
from tests.support.checking.history import Following, Store, change_of

if TYPE_CHECKING:
    from tests.simulation.simulated_cluster import Simulation

PATTERN: Final = "project.*.x"
PROJECTS: Final[tuple[Store, ...]] = tuple(
    (int(StoreKind.STREAM), f"project.{number}.x") for number in range(1, 7)
)
#: Their names are alike and do not match.
OTHERS: Final[tuple[Store, ...]] = tuple(
    (int(StoreKind.STREAM), name) for name in ("project.1.y", "project.x")
)


class ProjectWriter(Application):
    """Writes to few projects first, and to more and more of them."""

    role = "p"

    async def work(self, until: float) -> None:
        """Append and delete until the time `until`."""
        loop, chance = asyncio.get_running_loop(), self._chance
        while loop.time() < until:
            await asyncio.sleep(chance.expovariate(4.0))
            timeout_seconds = chance.choice((0.3, 1.0, 3.0))
            born = 1 + int(len(PROJECTS) * loop.time() / until)
            name = chance.choice((*PROJECTS[:born], PROJECTS[0]))[1]
            if chance.random() < 0.1:
                _, name = chance.choice(OTHERS)
            last_seq = self._last_seqs.get(name, 0)
            if last_seq and chance.random() < 0.2:
                seq = chance.randint(max(1, last_seq - 5), last_seq)
                operation = self._invoke((int(StoreKind.STREAM), name), "delete", keys=(seq,))
                stream = self._client.stream(name)
                await self._call(operation, stream.delete(seq, timeout_seconds=timeout_seconds))
            else:
                await self._append(name, timeout_seconds)


class FollowPattern:
    """One follower of all projects, from the first message of each or from now on."""

    def __init__(self, simulation: Simulation, number: int, chance: random.Random) -> None:
        self._history = simulation.history
        self._trace = simulation.trace
        self._fail = simulation.fail
        self._name = f"pattern {number}"
        self._start_seq = chance.choice((None, 1))
        self._pause_seconds = chance.choice((0.0, 0.0, 0.02, 0.2))
        self._followings: dict[str, Following] = {}

    def __repr__(self) -> str:
        return f"{self._name} from {self._start_seq}"

    async def run(self, client: Client) -> None:
        """Follow until the last value of every project, or for ever. Begins again if it cannot."""
        while True:
            try:
                async with client.subscribe(PATTERN, start_seq=self._start_seq) as subscription:
                    live_after = _beginnings(subscription)
                    if live_after is None:
                        # It may not read what it has listed, as it is about to be told.
                        assert self._history.tokens, "a store that is followed was not read"
                        await asyncio.sleep(0.5)
                        continue
                    waiting = {name for _, name in PROJECTS}
                    async for found in subscription:
                        if self._take(found, live_after.get(found.store, 0)):
                            self._followings[found.store].complete = True
                            waiting.discard(found.store)
                            if not waiting:
                                return
                        await asyncio.sleep(self._pause_seconds)
                    return
            except OUTAGES as error:
                # Only while starting: nothing has been given out. A disk that fails then is told
                # of.
                assert not self._followings, error
                await asyncio.sleep(0.5)
            except NotAllowedError:
                if not self._history.tokens:
                    raise
                # Nothing tells a follower when its token is good again: it begins anew.
                self._followings = {}
                await asyncio.sleep(0.5)

    def _take(self, found: StoreChange, live_after: int) -> bool:
        name, change = found
        self._trace.add(f"{self!r} gets {change.kind} {change.revision} of {name}")
        store = (int(StoreKind.STREAM), name)
        if not matches(PATTERN, name):
            self._fail(f"{self!r} is given changes of {name}")
        following = self._followings.get(name)
        if following is None:
            following = Following(self._name, store, self._start_seq, live_after=live_after)
            self._followings[name] = following
            self._history.followings.append(following)
        followed = change_of(change)
        following.changes.append((change.kind, change.revision, followed))
        return followed is not None and followed.value == last_value(store, "")


def _beginnings(subscription: PatternSubscription) -> dict[str, int] | None:
    """Return after which revision of each store a follower without history begins; None if one
    could not be read. With history everything comes in the order of revisions, since no message of
    a project is ever replaced."""
    if subscription._feed._start_seq is not None:
        return {}
    starts = {
        name: state.track._start if isinstance(state, StoreFeed) else state
        for name, state in subscription._feed._stores.items()
    }
    found = {name: start.revision for name, start in starts.items() if start is not None}
    return found if len(found) == len(starts) else None

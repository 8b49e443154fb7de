"""The shell of `rebalancing.py`: asks servers for their loads, and orders moves.

A server hands a store over by itself (`persist/lifecycle/moving.py`), and the release that it sends
names the next owner. So an order that is lost, late or doubled harms nothing, and a coordinator
that dies leaves nothing half done: its successor looks at the loads anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from holdfast.coordinator.decisions.member import MemberView
from holdfast.coordinator.decisions.rebalancing import Move, Rebalancing, imbalance_of
from holdfast.coordinator.life import Life
from holdfast.coordinator.peers.orders import Orders
from holdfast.protocol.control import Owner, ServerLoad
from holdfast.protocol.errors import BusyError, DeposedError, HoldfastError
from holdfast.protocol.limits import MAX_HOT_STORES
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.names import StoreId

logger = logging.getLogger("holdfast.coordinator")

#: How often it looks whether something is to be done.
_LOOK_SECONDS: Final = 0.5
#: Requests of operators that are answered at the same time.
_MAX_REQUESTS: Final = 64

Answer = Callable[[str, Mapping[str, Any] | HoldfastError], None]


class Rebalancer:
    """Moves stores in one term. `run` it in a task."""

    def __init__(
        self,
        life: Life,
        orders: Orders,
        rebalancing: Rebalancing,
        members: Callable[[], Sequence[MemberView]],
        answer: Answer,
        term: int,
    ) -> None:
        """`answer` takes the subject of a reply, and the reply."""
        self._life = life
        self._orders = orders
        self._rebalancing = rebalancing
        self._members = members
        self._answer = answer
        self._term = term
        self._request_count = 0
        self._moved = life.statistics.counter(metrics.MOVES)

    async def run(self) -> None:
        """Move stores while a run is under way, until cancelled. Raises DeposedError."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if not self._rebalancing.due(self._life.now()):
                continue
            loads = await self._loads()
            moves = self._rebalancing.decide(loads, self._life.now())
            if moves:
                logger.info(
                    "coordinator.rebalance moves=%d imbalance=%.2f", len(moves), imbalance_of(loads)
                )
            await self._order(moves)

    def released(self, stores: Sequence[StoreId]) -> None:
        """Note that stores were released to the servers that are to own them."""
        for store in stores:
            self._moved.value += 1
            self._rebalancing.moved(store, self._life.now())

    # What operators ask for
    def rebalance(self, dry_run: bool, reply_to: str) -> None:
        """Answer with what the servers do, and which moves would even it out. Unless `dry_run`,
        begin a run."""
        self._begin("rebalance", self._rebalance(dry_run), reply_to)

    def move(self, store: StoreId, owner: Owner, to: str, reply_to: str) -> None:
        """Order the owner of a store to hand it over to the server `to`; answer once it has heard
        that."""
        self._begin("move", self._move(store, owner, to), reply_to)

    def _begin(self, name: str, work: Any, reply_to: str) -> None:
        if self._request_count >= _MAX_REQUESTS:
            work.close()
            self._answer(reply_to, BusyError(what="the queue of moves"))
            return
        self._request_count += 1
        self._life.background_tasks.start(name, self._answered(work, reply_to))

    async def _answered(self, work: Any, reply_to: str) -> None:
        try:
            self._answer(reply_to, {"term": self._term, **await work})
        except DeposedError:
            raise
        except HoldfastError as error:
            self._answer(reply_to, error)
        finally:
            self._request_count -= 1

    async def _rebalance(self, dry_run: bool) -> Mapping[str, Any]:
        rebalancing = self._rebalancing
        if not dry_run:
            rebalancing.begin(self._life.now())
        loads = await self._loads()
        return {
            "running": rebalancing.running,
            "moved": rebalancing.moved_count,
            "failed": rebalancing.failed_count,
            "imbalance": rebalancing.bounds.imbalance,
            "servers": [
                [each.server, each.load, each.operations, each.bytes, each.open_stores]
                for each in loads
            ],
            "moves": [
                [*move.store, move.source, move.target, move.load]
                for move in rebalancing.proposed(loads)
            ],
        }

    async def _move(self, store: StoreId, owner: Owner, to: str) -> Mapping[str, Any]:
        await self._orders.move(owner.server, owner.incarnation, to, [(store, owner.epoch)])
        return {"owner": owner, "moving": True}

    # What servers are asked and told
    async def _loads(self) -> list[ServerLoad]:
        """Return the loads of the servers that take stores. Those that do not answer are left
        out."""
        members = [member for member in self._members() if member.takes_new_stores]
        asked = [
            self._orders.ask_load(member.server, member.incarnation, MAX_HOT_STORES)
            for member in members
        ]
        found = await asyncio.gather(*asked)
        return [
            load._replace(zone=member.zone)
            for member, load in zip(members, found, strict=True)
            if load is not None
        ]

    async def _order(self, moves: Sequence[Move]) -> None:
        by_order: dict[tuple[str, str, str], list[Move]] = {}
        for move in moves:
            by_order.setdefault((move.source, move.incarnation, move.target), []).append(move)
        for (server, incarnation, to), some in by_order.items():
            stores = [(move.store, move.epoch) for move in some]
            try:
                await self._orders.move(server, incarnation, to, stores)
            except DeposedError:
                raise
            except HoldfastError as error:
                logger.info("coordinator.move_refused server=%s reason=%s", server, error)
                for move in some:
                    self._rebalancing.failed(move.store, self._life.now())

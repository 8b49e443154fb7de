"""From a requested store to an open one, or to a refusal.

    wanted ──▶ room made ──▶ coordinator asked, many at once ──▶ dead logs read ──▶ `openings.py`

A store that the coordinator has just granted without being asked (`early_grants.py`) waits for no
answer. If that grant was told alone, the store is opened at once: the client that was told of the
owner at the same time needs as long for its first frame as a small file takes.

`open_stores.py` keeps the operations that wait for a store and returns them in the order of
arrival. A server that opens nothing any more releases what it was granted and sends the
clients elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

from holdfast.persist.life_phase import LifePhase
from holdfast.persist.lifecycle.giving_back import GivingBack
from holdfast.persist.lifecycle.openings import Openings
from holdfast.persist.peers.coordination import Coordination
from holdfast.persist.quotas.open_room import OpenRoom
from holdfast.persist.store.open_stores import OpenStores, WantedStore
from holdfast.persist.write_path.checkpointing import Checkpointer
from holdfast.protocol.control import Grant
from holdfast.protocol.errors import (
    BusyError,
    FencedError,
    HoldfastError,
    NotOwnerError,
    UnavailableError,
    error_from_wire,
)
from holdfast.protocol.names import StoreId
from holdfast.protocol.serving.trouble import Trouble
from holdfast.shared_fs.bucket.bucket_errors import BucketUnavailableError

logger = logging.getLogger("holdfast.persist")

#: How many stores one `open` request asks for.
_OPEN_BATCH: Final = 512
#: How long requested stores wait until others can be closed for them.
_ROOM_SECONDS: Final = 2.0
_ROOM_LOOK_SECONDS: Final = 0.01
_RETRY_SECONDS: Final = 0.1


class OpenQueue:
    """Opens the wanted stores of one incarnation. `run` it in a task."""

    def __init__(
        self,
        open_stores: OpenStores,
        coordination: Coordination,
        checkpointer: Checkpointer,
        phase: LifePhase,
        giving_back: GivingBack,
        openings: Openings,
        max_open_stores: int,
        room: OpenRoom | None = None,
    ) -> None:
        """`room` is what tenants have of the open stores; None: no tenant has a limit."""
        self._server = phase.server
        self._open_stores = open_stores
        self._coordination = coordination
        self._checkpointer = checkpointer
        self._phase = phase
        self._giving_back = giving_back
        self._openings = openings
        self._max_open_stores = max_open_stores
        self._room = room
        self._waiting = Trouble(logger, "store.open_waits")

    async def run(self) -> None:
        """Open wanted stores until cancelled. FencedError ends the incarnation."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._open_stores.wanted.wait()
                self._open_stores.wanted.clear()
                batch = max(1, min(_OPEN_BATCH, self._max_open_stores // 4))
                while True:
                    # Stores that are taken wait for earlier ones, so take them as late as possible.
                    await self._openings.opens.wait_below(_OPEN_BATCH)
                    wanted = self._open_stores.take_wanted(batch)
                    if not wanted:
                        break
                    async with self._openings.opens.may_begin:
                        await self._open_batch(wanted, tasks)

    def open_ahead(self, store: StoreId) -> None:
        """Open a store that was just granted, before its first frame arrives.

        Only if that is in nobody's way: no other store is closed for it, and no job has its file.
        """
        if (
            self._phase.owns_stores
            and not self._phase.opens_nothing
            and self._excess(1) <= 0
            and not self._open_stores.leases.is_leased(store)
            # It needs a higher epoch, so the coordinator must be asked.
            and store not in self._giving_back.epochs
        ):
            self._open_stores.expect(store)

    async def _open_batch(self, wanted: list[WantedStore], tasks: asyncio.TaskGroup) -> None:
        if not self._phase.owns_stores:
            # Whoever asks has an old answer, or none of the coordinator's.
            for each in wanted:
                self._openings.refuse(each.store, NotOwnerError(server=self._server))
            return
        try:
            await self._make_room(len(wanted))
            wanted = self._free(wanted)
            if self._room is not None:
                wanted = await self._room.admit(wanted)
            if not wanted:
                return
            grants = await self._grants(wanted)
            for each, grant in zip(wanted, grants, strict=True):
                if grant[0] is not None:
                    self._giving_back.granted(each.store)
            if self._phase.opens_nothing:
                await self._turn_away(wanted, grants)
                return
            await self._openings.read_dead_logs()
        except BusyError as error:
            for each in wanted:
                self._openings.refuse(each.store, error)
            return
        except (UnavailableError, BucketUnavailableError) as error:
            # Clients get their answer when the coordinator is back, or give up by themselves.
            self._waiting.note("stores=%d reason=%s", len(wanted), error)
            await asyncio.sleep(_RETRY_SECONDS)
            self._open_stores.ask_again(wanted)
            return
        except FencedError:
            raise
        except HoldfastError as error:
            for each in wanted:
                self._openings.refuse(each.store, error)
            return
        self._waiting.over()
        for each, grant in zip(wanted, grants, strict=True):
            if grant[0] is None:
                self._openings.refuse(each.store, error_from_wire(grant[1], grant[2]))
            else:
                self._openings.begin(each, Grant(*grant[:5]), tasks)

    async def _grants(self, wanted: list[WantedStore]) -> list[Sequence[Any]]:
        """Return for each store its grant, or why there is none, as `Coordination.open` does."""
        epochs = self._giving_back.epochs
        known: dict[StoreId, Sequence[Any]] = {}
        for store, _ in wanted:
            # One that was given back needs a higher epoch.
            early = None if store in epochs else self._coordination.open_early(store)
            if early is not None:
                known[store] = early
        unknown = [each for each in wanted if each.store not in known]
        if unknown:
            answers = await self._coordination.open(unknown, epochs)
            known.update(zip((each.store for each in unknown), answers, strict=True))
        return [known[each.store] for each in wanted]

    def _free(self, wanted: list[WantedStore]) -> list[WantedStore]:
        """Return the stores that can be opened now; leased ones are asked for again when
        their lease ends.

        This happens before the coordinator is asked. It may be about to hear that a leased file is
        removed, and a grant made before that would say that the file exists.
        """
        leases = self._open_stores.leases
        leased = [each for each in wanted if leases.is_leased(each.store)]
        for each in leased:
            self._openings.ask_when_free(each)
        return [each for each in wanted if each not in leased]

    async def _make_room(self, count: int) -> None:
        """Close stores that are not in use until `count` more may be open. Raises BusyError if all
        are in use or cannot be made durable."""
        clock = asyncio.get_running_loop().time
        give_up_at = clock() + _ROOM_SECONDS
        while (excess := self._excess(count)) > 0:
            if await self._checkpointer.make_room(excess, clock()):
                continue
            if clock() > give_up_at:
                raise BusyError(what=f"the open stores of server {self._server!r}")
            await asyncio.sleep(_ROOM_LOOK_SECONDS)

    def _excess(self, count: int) -> int:
        opened = self._open_stores.open_count + self._openings.opens.count
        return opened + count - self._max_open_stores

    async def _turn_away(self, wanted: list[WantedStore], grants: list[Sequence[Any]]) -> None:
        """Release the stores that were granted but are not open, and send the clients elsewhere."""
        granted = []
        for each, grant in zip(wanted, grants, strict=True):
            if grant[0] is not None:
                granted.append((each.store, int(grant[0])))
                # If it is open at all, then in memory for reads: nobody ever wrote to it.
                opened = self._open_stores.find(each.store)
                if opened is not None:
                    if opened.file is not None:
                        opened.file.abandon()
                    self._open_stores.closed(opened)
        if granted:
            await self._giving_back.release(granted)
        error = NotOwnerError(server=self._server)
        for each in wanted:
            self._openings.refuse(each.store, error)

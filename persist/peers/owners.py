"""Asks the owner of each given store for the store's head, so that each store gets an owner.

This goes over the wire like any client's request, in small batches. A store without an owner is
assigned and opened, and its new owner first brings it up to date from the logs of dead owners.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final

from holdfast.protocol import frames
from holdfast.protocol.bus.bus import Bus, BusTimeoutError, NoRespondersError
from holdfast.protocol.errors import HoldfastError, MalformedFrameError, error_from_wire
from holdfast.protocol.limits import CONTROL_TIMEOUT_SECONDS
from holdfast.protocol.names import StoreId
from holdfast.protocol.subjects import CLUSTER_TENANT, Subjects

#: How many stores are taken over between two pauses.
_BATCH: Final = 32
_BREATH_SECONDS: Final = 0.05
#: How many stores one command names.
_SNAPSHOT_BATCH: Final = 512
_READER: Final = b"log-reaper"


class Owners:
    """The owners of a cluster's stores, found through the coordinator."""

    def __init__(self, bus: Bus, subjects: Subjects, *, asks_for_tokens: bool) -> None:
        """With `asks_for_tokens` it uses the cluster's own subjects, since servers have no token.
        An open cluster may have members that do not know those yet."""
        self._bus = bus
        self._subjects = subjects
        self._asks_for_tokens = asks_for_tokens

    async def take_over(self, stores: Sequence[StoreId]) -> dict[str, list[StoreId]]:
        """Return once each store is open at its owner, or was a moment ago: the stores of each
        owner. Raises the HoldfastError of the first store that is not."""
        owned: dict[str, list[StoreId]] = defaultdict(list)
        async for store, owner in self.each_taken_over(stores):
            owned[owner].append(store)
        return owned

    async def take_over_each(
        self, stores: Sequence[StoreId], refused: Callable[[StoreId, HoldfastError], None]
    ) -> dict[str, list[StoreId]]:
        """`take_over` those that can be. One that cannot, because it is damaged for instance, holds
        up no other: `refused` is told of it. Once nobody has answered for a whole batch, it is told
        of all others too, which are not asked for."""
        owned: dict[str, list[StoreId]] = defaultdict(list)
        for start in range(0, len(stores), _BATCH):
            some = stores[start : start + _BATCH]
            try:
                found, silence = await self.take_over(some), None
            except HoldfastError:
                found, silence = await self._one_by_one(some, refused)
            for owner, mine in found.items():
                owned[owner] += mine
            if silence is not None:
                for store in stores[start + _BATCH :]:
                    refused(store, silence)
                break
        return owned

    async def _one_by_one(
        self, stores: Sequence[StoreId], refused: Callable[[StoreId, HoldfastError], None]
    ) -> tuple[dict[str, list[StoreId]], HoldfastError | None]:
        """Return the owners, and an error if nobody has answered for any of the stores."""
        owned: dict[str, list[StoreId]] = defaultdict(list)
        silent: list[HoldfastError] = []
        for store in stores:
            try:
                for owner, mine in (await self.take_over([store])).items():
                    owned[owner] += mine
            except HoldfastError as error:
                refused(store, error)
                if isinstance(error, NoRespondersError | BusTimeoutError):
                    silent.append(error)
        return owned, silent[-1] if len(silent) == len(stores) else None

    async def each_taken_over(
        self, stores: Sequence[StoreId]
    ) -> AsyncIterator[tuple[StoreId, str]]:
        """Yield each store and its owner, once the owner has answered for it. Raises the
        HoldfastError of the first store that is not open."""
        for start in range(0, len(stores), _BATCH):
            by_tenant: dict[str, list[StoreId]] = defaultdict(list)
            for store in stores[start : start + _BATCH]:
                by_tenant[store.tenant].append(store)
            for tenant, some in by_tenant.items():
                for owner, found in (await self._resolve(tenant, some)).items():
                    for store in found:
                        await self._ask_head(owner, store)
                        yield store, owner
            await asyncio.sleep(_BREATH_SECONDS)

    async def request_snapshots(self, owned: Mapping[str, Sequence[StoreId]]) -> None:
        """Have owners snapshot these stores soon. Raises UnavailableError, or the error that an
        owner answers with."""
        for owner, stores in owned.items():
            for start in range(0, len(stores), _SNAPSHOT_BATCH):
                named = [list(store) for store in stores[start : start + _SNAPSHOT_BATCH]]
                command = frames.encode_control(command="snapshot", stores=named)
                subject = self._subjects.control(owner)
                answer = await self._bus.request(subject, command, CONTROL_TIMEOUT_SECONDS)
                frames.decode_control(answer)

    async def _resolve(self, tenant: str, stores: list[StoreId]) -> dict[str, list[StoreId]]:
        subjects = self._subjects
        if self._asks_for_tokens:
            subject, asker = subjects.cluster("owners"), CLUSTER_TENANT
            named = [[tenant, store.kind, store.name] for store in stores]
        else:
            subject, asker = subjects.coordinator(tenant, "resolve"), tenant
            named = [[store.kind, store.name] for store in stores]
        answer = await self._bus.request(
            subject, frames.encode_control(stores=named), CONTROL_TIMEOUT_SECONDS, asker
        )
        owners = frames.decode_control(answer)["owners"]
        by_owner: dict[str, list[StoreId]] = defaultdict(list)
        for store, owner in zip(stores, owners, strict=True):
            if owner[0] is None:
                raise error_from_wire(owner[1], owner[2])
            by_owner[owner[0]].append(store)
        return by_owner

    async def _ask_head(self, owner: str, store: StoreId) -> None:
        group = [store.kind, store.name, 0, 0, 0, [[frames.HEAD]]]
        if self._asks_for_tokens:
            subject, asker = self._subjects.own(owner, store.tenant), CLUSTER_TENANT
        else:
            subject, asker = self._subjects.server(store.tenant, owner), store.tenant
        request = frames.encode_request(_READER, [group])
        reply = await self._bus.request(subject, request, CONTROL_TIMEOUT_SECONDS, asker)
        for element in frames.decode(reply):
            if type(element) is not list or len(element) < 3:
                raise MalformedFrameError(reason="a reply element must be a list of at least three")
            if element[1] != 0:
                raise error_from_wire(element[2], element[3])

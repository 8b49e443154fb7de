"""A stream while it is being created: what hears its subjects, and the store that it will have.

A store is claimed before the catalogue has the stream: in one write, the owner says that nobody has
used it, configures it, and raises its serving epoch. So the stream is served as soon as it is in
the catalogue, which never names a store with messages of somebody else.

Whoever claims a store and then ends, or is refused by the catalogue, leaves it as it is: without
messages, and named by no stream. The next creation of a stream of this name takes it. Nobody
removes it, because another gateway may have taken it meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from holdfast.client import Client
from holdfast.client.handles.serving import ServingStream
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig, store_settings
from holdfast.gateway.jetstream.catalogue.catalogue import StreamEntry, store_names
from holdfast.gateway.jetstream.catalogue.keeper import CatalogueKeeper
from holdfast.gateway.jetstream.streams.early_interest import EarlyInterest
from holdfast.gateway.jetstream.wire.ports import ClientPort
from holdfast.protocol.errors import DeposedWriterError, WrongRevisionError


class StoreClaim(NamedTuple):
    """A store that was never used, and the serving epoch that it has got."""

    store: str
    serving_epoch: int
    #: When its owner was asked: a time of the loop.
    asked_at: float


class NewStream:
    """One stream to be. `begin` it, and `end` it when it was created or refused."""

    def __init__(
        self,
        port: ClientPort,
        holdfast: Client,
        keeper: CatalogueKeeper,
        config: ApiStreamConfig,
        now_ms: Callable[[], int],
    ) -> None:
        self.name = config.name
        self.interest = EarlyInterest(port, config.subjects)
        #: What the catalogue is to say; None if no store was claimed.
        self.entry: StreamEntry | None = None
        self._holdfast = holdfast
        self._keeper = keeper
        self._config = config
        self._now_ms = now_ms
        self._claim: StoreClaim | None = None
        self._ended = asyncio.Event()

    async def begin(self) -> None:
        """Hold what is published from now on, and claim a store, unless another gateway turns out
        to have created the stream. Raises HoldfastError; `end` it then, too."""
        await self.interest.begin()
        self._claim = await self._claimed()
        if self._claim is not None:
            self.entry = StreamEntry.of(self._config.to_json(), self._claim.store, self._now_ms())

    async def end(self) -> None:
        """Listen no more, unless that was handed over. Who waits for the end goes on."""
        self._ended.set()
        await self.interest.cancel()

    async def ended(self) -> None:
        """Return once it has ended."""
        await self._ended.wait()

    def take_claim(self, entry: StreamEntry) -> StoreClaim | None:
        """Return what was claimed, once, to who serves the stream by the entry of this creation."""
        if entry != self.entry:
            return None
        claim, self._claim = self._claim, None
        return claim

    async def _claimed(self) -> StoreClaim | None:
        """Claim the first of the stream's stores that nobody has used."""
        catalogue = self._keeper.catalogue
        settings = store_settings(self._config, creating=True)
        for store in store_names(self.name):
            if catalogue.store_is_taken(store):
                continue
            claim = await self._claim_store(store, settings)
            if claim is not None or catalogue.get(self.name) is not None:
                return claim
        raise AssertionError("there is always another name")

    async def _claim_store(self, store: str, settings: Mapping[str, Any]) -> StoreClaim | None:
        stream = self._holdfast.serving_stream(store)
        clock = asyncio.get_running_loop().time
        epoch, asked_at = self._now_ms(), clock()
        try:
            await stream.begin_serving(epoch, only_unused=True, **settings)
        except WrongRevisionError:
            return await self._claim_again(store, stream, settings)
        return StoreClaim(store, epoch, asked_at)

    async def _claim_again(
        self, store: str, stream: ServingStream, settings: Mapping[str, Any]
    ) -> StoreClaim | None:
        """StoreClaim a store that an earlier creation has claimed, and that no stream has."""
        former = (await stream.config()).serving_epoch
        if former is None:
            return None
        await self._keeper.caught_up()
        if self._keeper.catalogue.store_is_taken(store):
            return None
        epoch = max(self._now_ms(), former + 1)
        asked_at = asyncio.get_running_loop().time()
        try:
            await stream.begin_serving(epoch, only_unused=True, former_epoch=former, **settings)
        except (WrongRevisionError, DeposedWriterError):
            return None
        return StoreClaim(store, epoch, asked_at)

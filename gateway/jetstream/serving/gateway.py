"""The gateway: JetStream's API in front of a tenant's streams.

Three connections come in from outside: a client's and a leafnode's to the account of the JetStream
clients, and a holdfast client of the tenant. `shard_keeper.py` decides which shards this gateway
holds; here that becomes streams that are served or not, and questions to other gateways. Requests
come in by `api_router.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.client import Client
from holdfast.gateway.jetstream.api.errors import ApiError
from holdfast.gateway.jetstream.api.limits import NO_LIMITS, AccountLimits
from holdfast.gateway.jetstream.catalogue.catalogue import Catalogue, StreamEntry
from holdfast.gateway.jetstream.catalogue.keeper import CatalogueKeeper
from holdfast.gateway.jetstream.origins.directory import OriginDirectory
from holdfast.gateway.jetstream.serving.api_router import ApiRouter, Servers
from holdfast.gateway.jetstream.serving.peers import PeerListener, Peers
from holdfast.gateway.jetstream.serving.presence import GatewayPresence
from holdfast.gateway.jetstream.serving.served_streams import ServedStreams
from holdfast.gateway.jetstream.serving.shard_keeper import (
    AskRelease,
    Effect,
    GiveUp,
    Offer,
    Serve,
    ShardKeeper,
)
from holdfast.gateway.jetstream.serving.shards import shard_of
from holdfast.gateway.jetstream.serving.stream_api import StreamApi
from holdfast.gateway.jetstream.serving.stream_infos import INFOS, USAGE, StreamInfos
from holdfast.gateway.jetstream.streams.account import Account
from holdfast.gateway.jetstream.streams.context import API_START, GatewayContext
from holdfast.gateway.jetstream.wire.pair_check import JetStreamExistsError
from holdfast.gateway.jetstream.wire.ports import ClientPort, LeafPort, PortMessage
from holdfast.protocol.bus.bus import BusTimeoutError, NoRespondersError
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.subjects import DEFAULT_PREFIX

logger = logging.getLogger("holdfast.gateway")

#: How long the question whether there is another JetStream waits for an answer.
_PROBE_SECONDS: Final = 2.0
#: How long a start waits for the streams that there are, before requests are answered.
_FIRST_STREAMS_SECONDS: Final = 10.0
#: What a gateway that leaves gives the others to ask for its streams.
_LEAVE_SECONDS: Final = 2.0
#: Until the catalogue's owner is asked again.
_CATCH_UP_PAUSE_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """What a gateway is told at its start."""

    #: Its id: unique for each life of a gateway of the tenant.
    gateway: str
    prefix: str = DEFAULT_PREFIX
    #: A JetStream domain by which clients may address it, or "".
    domain: str = ""
    limits: AccountLimits = NO_LIMITS
    #: The persist server in whose process it works, or "".
    beside: str = ""
    #: The time since the epoch; the simulator has its own.
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000


class JetStreamGateway(PeerListener):
    """One gateway. `run` it until it is cancelled."""

    def __init__(
        self, options: GatewayOptions, client: ClientPort, leaf: LeafPort, holdfast: Client
    ) -> None:
        self.options = options
        self._client = client
        self._leaf = leaf
        self._holdfast = holdfast
        self._tasks: asyncio.TaskGroup | None = None
        presence = GatewayPresence(client, self._is_own)
        self.catalogue = Catalogue(self._entry_changed)
        self.keeper = CatalogueKeeper(holdfast, self.catalogue)
        self.context = GatewayContext(
            client,
            leaf,
            holdfast,
            presence,
            OriginDirectory(self.keeper),
            options.now_ms,
            self.spawn,
            options.domain,
            options.limits,
            (f"{options.prefix}.>",),
            options.beside,
        )
        client.rest_after_pieces(self._after_piece)
        #: The streams that there are, by shard.
        self._names: dict[int, set[str]] = {}
        self.streams = ServedStreams(self.context, self._stream_lost)
        self.shards = ShardKeeper(options.gateway)
        start = f"{options.prefix}.{holdfast.tenant}.js"
        self.peers = Peers(client, leaf, start, options.gateway, presence, self)
        account = self.account = Account(options.limits, options.domain)
        self._infos = StreamInfos(
            self.context,
            self.catalogue,
            self.streams,
            lambda stream: self.shards.table.gateway_of(stream),
            self._other_gateways,
            self.peers.question,
        )
        self.stream_api = StreamApi(self.context, self.keeper, self.streams, account, self._infos)
        servers = Servers(
            options.gateway,
            lambda stream: self.shards.table.gateway_of(stream),
            self.peers.pass_on,
        )
        self.api = ApiRouter(self.context, servers, account, self.stream_api.handlers())
        self._shards_timer: asyncio.TimerHandle | None = None
        #: Set while no shards are asked for.
        self._steady = asyncio.Event()

    def _after_piece(self) -> float:
        """Send what a piece has brought, and return how long the next ones may gather."""
        self._holdfast.send_now()
        return self.context.load.rest_seconds()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work in a task that ends with the gateway. What it raises is logged."""
        if self._tasks is None:
            work.close()
            return
        # A task that is cancelled before it begins leaves its work as it is.
        self._tasks.create_task(_guarded(work)).add_done_callback(lambda _: work.close())

    async def run(self, ready: asyncio.Event) -> None:
        """Serve until cancelled; `ready` is set once requests are answered.

        When it is cancelled it leaves: others take its streams, and what it has appended is
        answered. Raises JetStreamExistsError if there is another JetStream already.
        """
        # Before anything of the cluster is asked for, which may be away.
        await self._check_alone()
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                await self._serve_until_cancelled(tasks, ready)
            finally:
                # While it ends it takes no more tasks.
                self._tasks = None

    async def _serve_until_cancelled(self, tasks: asyncio.TaskGroup, ready: asyncio.Event) -> None:
        tasks.create_task(self.keeper.run())
        tasks.create_task(self.streams.run())
        await self.keeper.loaded()
        await self.peers.start()
        tasks.create_task(self.peers.run())
        await self.api.subscribe()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_STREAMS_SECONDS):
                await self._steady.wait()
                await self.streams.settled()
        logger.info(
            "jetstream.serving gateway=%s tenant=%s streams=%d",
            *(self.options.gateway, self._holdfast.tenant, len(self.streams)),
        )
        ready.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.shield(self._leave())
            raise

    async def _check_alone(self) -> None:
        """Raise JetStreamExistsError if nats-server's own JetStream answers this account.

        Another gateway may answer, or hang: then there is interest in heartbeats.
        """
        try:
            answer = await self._client.request(
                f"{API_START}INFO", b"", timeout_seconds=_PROBE_SECONDS
            )
        except NoRespondersError:
            return
        except BusTimeoutError:
            if self._leaf.has_interest(self.peers.heartbeats):
                return
            reason = "somebody listens for requests of JetStream's API and does not answer"
            raise JetStreamExistsError(reason=reason) from None
        if not ApiRouter.is_ours(answer):
            reason = "the account has JetStream already, and both would answer"
            raise JetStreamExistsError(reason=reason)

    async def _leave(self) -> None:
        """Let others take over, and answer what is left."""
        await self.api.unsubscribe()
        self.peers.leave()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_SECONDS):
                if len(self.peers.live_gateways.live):
                    await self.streams.emptied()
        await self.streams.close(drain=True)
        with contextlib.suppress(HoldfastError):
            await self._client.flush()

    # What other gateways say

    def gateways_changed(self, live: Sequence[str], leaving: Sequence[str]) -> None:
        self._apply(self.shards.view(live, self._now(), leaving))

    def asked_to_release(self, gateway: str, number: int, shards: Sequence[int]) -> None:
        self._apply(self.shards.asked(gateway, number, shards, self._now()))

    def offered(self, gateway: str, shards: Sequence[int]) -> None:
        self._apply(self.shards.offered(gateway, shards, self._now()))

    def released(self, gateway: str, number: int, revision: int) -> None:
        self._apply(self.shards.answered(gateway, number, self._now()))

    def questioned(self, what: str, body: dict[str, Any], message: PortMessage) -> None:
        if what in (INFOS, USAGE):
            self.spawn(self._infos.answer(what, body, message))

    def passed_on(self, verb: str, message: PortMessage) -> None:
        self.api.passed_on(verb, message)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _apply(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, AskRelease):
                self.peers.ask(effect)
            elif isinstance(effect, Serve):
                self.spawn(self._serve(effect.shards))
            elif isinstance(effect, Offer):
                self.peers.offer(effect)
            else:
                self._give_up(effect)
        if self.shards.asking:
            self._steady.clear()
        else:
            self._steady.set()
        self._set_timer()

    def _set_timer(self) -> None:
        if self._shards_timer is not None:
            self._shards_timer.cancel()
            self._shards_timer = None
        wake_at = self.shards.wake_at
        if wake_at != float("inf"):
            loop = asyncio.get_running_loop()
            self._shards_timer = loop.call_at(
                max(wake_at, loop.time()), lambda: self._apply(self.shards.tick(self._now()))
            )

    def _other_gateways(self) -> list[str]:
        gateways = self.peers.live_gateways
        own = self.options.gateway
        return [each for each in (*gateways.live, *gateways.leaving) if each != own]

    # Streams that come and go

    def holds(self, stream: str) -> bool:
        """Tell whether this gateway may serve a stream."""
        return shard_of(stream) in self.shards.held

    def _is_own(self, stream: str) -> bool:
        return self.shards.table.gateway_of(stream) == self.options.gateway

    def _entry_changed(self, before: StreamEntry | None, after: StreamEntry | None) -> None:
        name = _name_of(before, after)
        of_shard = self._names.setdefault(shard_of(name), set())
        if after is None:
            of_shard.discard(name)
        else:
            of_shard.add(name)
        if after is None or after.deleting:
            self.streams.unwant(name)
        elif self.holds(name):
            self.streams.want(after)
        self.context.origins.changed(name, before, after)

    async def _serve(self, shards: frozenset[int]) -> None:
        """Serve the streams of shards, of which the catalogue may not have told all yet."""
        if len(self.peers.live_gateways.live) > 1:
            await self._catch_up(shards)
        for name in self._names_of(shards):
            entry = self.catalogue.get(name)
            if entry is None or not self.holds(name):
                continue
            if entry.deleting:
                # Whoever began that has ended before it was done.
                self.spawn(self.stream_api.delete(name))
            else:
                self.streams.want(entry)

    async def _catch_up(self, shards: frozenset[int]) -> None:
        """Return once the catalogue is as new as this call, or none of the shards is held any more.
        While its owner does not answer, it is asked again: nobody else serves what is held here."""
        while shards & self.shards.held:
            try:
                await self.keeper.caught_up()
            except HoldfastError as error:
                logger.warning("jetstream.catalogue_late reason=%s", error)
                await asyncio.sleep(_CATCH_UP_PAUSE_SECONDS)
            else:
                return

    def _stream_lost(self, name: str) -> None:
        """Another gateway has raised the serving epoch of a stream: it has the whole shard."""
        shard = shard_of(name)
        self.shards.lost(shard, self._now())
        for each in self._names_of((shard,)):
            self.streams.unwant(each)
        self._apply([])

    def _give_up(self, effect: GiveUp) -> None:
        names = self._names_of(effect.shards)
        for name in names:
            self.streams.unwant(name)
        self.spawn(self._answer_release(names, effect))

    def _names_of(self, shards: Iterable[int]) -> list[str]:
        return [name for shard in shards for name in self._names.get(shard, ())]

    async def _answer_release(self, names: Sequence[str], effect: GiveUp) -> None:
        for name in names:
            await self.streams.gone(name)
        self.peers.answer(effect.gateway, effect.number, self.catalogue.revision)


def _name_of(before: StreamEntry | None, after: StreamEntry | None) -> str:
    entry = after or before
    assert entry is not None, "something changed"
    return entry.name


async def _guarded(work: Coroutine[Any, Any, None]) -> None:
    """A task that fails ends no other."""
    try:
        await work
    except (HoldfastError, ApiError) as error:
        logger.warning("jetstream.task_failed reason=%s", error)
    except Exception:
        logger.exception("jetstream.task_failed")

"""The router: asks the coordinator which server owns a store, and reports silent servers.

It remembers only the encodings that values may have, and the id of the cluster; each store's queue
keeps its owner. One request carries all stores that were wanted in the same turn of the loop.

If a coordinator dies, the questions sent to it are lost silently. So a question is sent again when
the answer is late, and the first answer to any copy counts. That is harmless because all questions
are idempotent: `resolve` assigns only stores without an owner, `suspect` joins a running probe, a
drain sets a mark that may be set already, a move names where a store shall be, and the others only
read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from holdfast.client.wire.store_queue import StoreKey
from holdfast.protocol.access.quota import TenantInfo
from holdfast.protocol.bus.bus import Bus, BusTimeoutError, NoRespondersError
from holdfast.protocol.control import Owner, ServerInfo, StoreInfo, StoreState
from holdfast.protocol.errors import (
    ConnectionFailedError,
    HoldfastError,
    MalformedFrameError,
    NoCoordinatorError,
    NotAllowedError,
    OtherClusterError,
    error_from_wire,
)
from holdfast.protocol.frames import decode_control, encode_control
from holdfast.protocol.limits import CONTROL_TIMEOUT_SECONDS, MAX_PARTS
from holdfast.protocol.monitoring.samples import PartStatistics
from holdfast.protocol.monitoring.telling import decode_report
from holdfast.protocol.names import StoreId
from holdfast.protocol.subjects import CLUSTER_TENANT, Subjects
from holdfast.protocol.work.zones import NOWHERE

#: Stores in one request. With the longest names it fills a fifth of a NATS message.
MAX_RESOLVE_STORES: Final = 1024
#: A question is sent again after this time, and then after twice as long each time, up to
#: CONTROL_TIMEOUT_SECONDS. So there are few copies, and they do not overload a slow coordinator.
RESEND_SECONDS: Final = 0.3
#: How often to check whether a coordinator is back.
LOOK_SECONDS: Final = 0.05
#: Rows in one page of `stores`.
STORES_PAGE_ROWS: Final = 1000


class AskedOfServer(NamedTuple):
    """What the clients of one tenant asked of one server, a second; refused or not."""

    server: str
    operations: float
    bytes: float


class LoadOfServer(NamedTuple):
    """What a server was asked for in the last seconds, a second."""

    server: str
    #: All that follows, in operations a second.
    load: float
    operations: float
    bytes: float
    open_stores: int


class ProposedMove(NamedTuple):
    """A store that another server should have."""

    store: StoreId
    source: str
    target: str
    load: float


class Rebalance(NamedTuple):
    """How even the servers' loads are, and what is or would be done about it."""

    servers: list[LoadOfServer]
    moves: list[ProposedMove]
    #: Stores are being moved. What the present or the last run did follows.
    running: bool
    moved: int
    failed: int

    @property
    def imbalance(self) -> float:
        """The load of the busiest server, divided by the mean."""
        loads = [each.load for each in self.servers]
        return max(loads) * len(loads) / sum(loads) if sum(loads) else 1.0


class Router:
    """Sends one tenant's questions to the coordinator."""

    def __init__(self, bus: Bus, subjects: Subjects, tenant: str, zone: str = NOWHERE) -> None:
        self._bus = bus
        self._zone = zone
        #: Replaced when the client's token was renewed.
        self.subjects = subjects
        self._tenant = tenant
        #: The encodings that values may have, as the coordinator said last; empty at first.
        self.encodings: frozenset[str] = frozenset()
        #: The id of the cluster that answered first; answers of others are refused.
        self._cluster: str | None = None

    async def resolve(self, stores: Sequence[StoreKey]) -> list[Owner | HoldfastError]:
        """Return for each of `stores` its owner, or the error. Errors of the coordinator or the bus
        are not raised but returned for each store."""
        answers: list[Owner | HoldfastError] = []
        where: dict[str, Any] = {"zone": self._zone} if self._zone else {}
        for start in range(0, len(stores), MAX_RESOLVE_STORES):
            part = stores[start : start + MAX_RESOLVE_STORES]
            try:
                fields = await self._ask("resolve", stores=[list(key) for key in part], **where)
                answers += _owners(fields, len(part))
                self.encodings = _encodings(fields)
            except HoldfastError as error:
                answers += [error] * len(part)
        return answers

    async def suspect(self, server: str, incarnation: str) -> bool:
        """Tell the coordinator that nobody answers for `incarnation`. Return whether it
        still lives.

        It waits for a coordinator, because a successor should hear of this as soon as there is one.
        Raises NoCoordinatorError, ConnectionFailedError, MalformedFrameError.
        """
        fields = await self._ask("suspect", patient=True, server=server, incarnation=incarnation)
        return bool(fields.get("alive"))

    async def servers(self, timeout_seconds: float | None = None) -> list[ServerInfo]:
        """Return every server that the coordinator knows. Waits for a coordinator.

        Raises NoCoordinatorError, ConnectionFailedError, MalformedFrameError.
        """
        fields = await self._ask("servers", patient=True, timeout_seconds=timeout_seconds)
        try:
            return [ServerInfo(*row[: len(ServerInfo._fields)]) for row in fields["servers"]]
        except (KeyError, TypeError) as error:
            raise MalformedFrameError(reason=f"servers: {error!r}") from error

    async def statistics(self, timeout_seconds: float | None = None) -> list[PartStatistics]:
        """Return what each part told the coordinator last. Waits for a coordinator. Parts whose
        numbers this version cannot read are left out.

        Raises NoCoordinatorError, ConnectionFailedError, MalformedFrameError,
        UnknownOperationError from a coordinator of an earlier version.
        """
        found: list[PartStatistics] = []
        after: object = None
        for _ in range(MAX_PARTS):
            fields = await self._ask(
                "statistics", patient=True, timeout_seconds=timeout_seconds, after=after
            )
            try:
                rows, after = fields["parts"], fields["next"]
                found += filter(None, map(_part, rows))
            except (KeyError, TypeError, ValueError) as error:
                raise MalformedFrameError(reason=f"statistics: {error!r}") from error
            if after is None:
                break
        return found

    async def report(self, kind: str, name: str, report: bytes) -> None:
        """Tell the coordinator what a gateway counts (`monitoring/telling.py`).

        Raises NoCoordinatorError, ConnectionFailedError, UnknownOperationError from a coordinator
        of an earlier version.
        """
        await self._ask("report", kind=kind, name=name, report=report)

    async def drain(self, server: str, *, undo: bool = False, by: str = "") -> None:
        """Drain a server, so that it hands over its stores and gets no new ones. With `undo`,
        end that. `by` is who does it, for the audit log.

        When this returns, the coordinator has recorded the mark; the stores follow. Raises
        InvalidNameError, NotFoundError, LastServerError if no other server could take them,
        NoCoordinatorError, ConnectionFailedError.
        """
        await self._ask_as_operator("undrain" if undo else "drain", server=server, by=by)

    async def forget(self, server: str, *, reassign: bool = False, by: str = "") -> None:
        """Take a dead server off the list of servers. With `reassign`, also if it is recorded as
        the last owner of stores: each gets a new owner when it is next used. `by` is who does it,
        for the audit log.

        Raises InvalidNameError, NotFoundError, ServerInUseError, NoCoordinatorError,
        ConnectionFailedError.
        """
        await self._ask_as_operator("forget", server=server, reassign=reassign, by=by)

    async def move(self, store: StoreId, server: str, *, by: str = "") -> tuple[Owner, bool]:
        """Have `server` own a store. Return who owns it, and whether that one was told to hand it
        over, which it soon does, unless a job uses the store. `by` is who does it, for the audit
        log.

        Raises InvalidNameError, NotFoundError if there is no such store or the server takes none,
        InvalidArgumentError from a cluster without a shared file system, NoCoordinatorError,
        ConnectionFailedError, MalformedFrameError.
        """
        fields = await self._ask_as_operator(
            "move", tenant=store.tenant, kind=store.kind, name=store.name, server=server, by=by
        )
        try:
            return _owner(*fields["owner"][:3]), bool(fields["moving"])
        except (KeyError, TypeError) as error:
            raise MalformedFrameError(reason=f"move: {error!r}") from error

    async def rebalance(self, *, dry_run: bool, by: str = "") -> Rebalance:
        """Return what the servers do, and the moves that would even it out. Unless `dry_run`, begin
        a run that makes such moves until there are none. `by` is who does it, for the audit log.

        Raises NoCoordinatorError, ConnectionFailedError, MalformedFrameError.
        """
        fields = await self._ask_as_operator("rebalance", dry_run=dry_run, by=by)
        try:
            return Rebalance(
                servers=[LoadOfServer(*row[:5]) for row in fields["servers"]],
                moves=[
                    ProposedMove(StoreId(*row[:3]), *row[3:6]) for row in fields["moves"]
                ],
                running=bool(fields["running"]),
                moved=int(fields["moved"]),
                failed=int(fields["failed"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise MalformedFrameError(reason=f"rebalance: {error!r}") from error

    async def tenants(self) -> AsyncIterator[str]:
        """Yield the tenants that have stores, or had some, in order. For operators only.

        Raises NoCoordinatorError, ConnectionFailedError, MalformedFrameError.
        """
        after: str | None = ""
        while after is not None:
            fields = await self._ask_as_operator("tenants", after=after)
            try:
                page = [str(tenant) for tenant in fields["tenants"]]
                after = fields["next"]
            except (KeyError, TypeError) as error:
                raise MalformedFrameError(reason=f"tenants: {error!r}") from error
            for tenant in page:
                yield tenant

    async def tenant_infos(self) -> AsyncIterator[TenantInfo]:
        """Yield what tenants have and may have, as `tenants` yields their names."""
        after: str | None = ""
        while after is not None:
            fields = await self._ask_as_operator("tenants", after=after)
            try:
                rows = zip(fields["tenants"], fields["use"], strict=True)
                page = [TenantInfo.from_wire(str(tenant), row) for tenant, row in rows]
                after = fields["next"]
            except (KeyError, TypeError, ValueError) as error:
                raise MalformedFrameError(reason=f"tenants: {error!r}") from error
            for info in page:
                yield info

    async def tenant_info(self, tenant: str) -> tuple[TenantInfo, list[AskedOfServer]]:
        """Return what a tenant has and may have, and, if its rates are limited, what was lately
        asked of each server. For operators only.

        Raises InvalidNameError, NoCoordinatorError, ConnectionFailedError, MalformedFrameError.
        """
        fields = await self._ask_as_operator("tenant", tenant=tenant)
        try:
            rates = [
                AskedOfServer(str(server), float(operations), float(size_bytes))
                for server, operations, size_bytes in fields["rates"]
            ]
            return TenantInfo.from_wire(tenant, fields["use"]), rates
        except (KeyError, TypeError, ValueError) as error:
            raise MalformedFrameError(reason=f"tenant: {error!r}") from error

    async def stores(
        self, kind: int | None, prefix: str, timeout_seconds: float | None = None
    ) -> AsyncIterator[StoreInfo]:
        """Yield the tenant's stores in order of (name, kind). Waits for a coordinator;
        `timeout_seconds` is for each page.

        Raises NoCoordinatorError, ConnectionFailedError, MalformedFrameError.
        """
        async with contextlib.aclosing(self.store_pages(kind, prefix, timeout_seconds)) as pages:
            async for page in pages:
                for store in page:
                    yield store

    async def store_pages(
        self, kind: int | None, prefix: str, timeout_seconds: float | None = None
    ) -> AsyncGenerator[list[StoreInfo], None]:
        """Yield what `stores` does, page by page. `timeout_seconds` applies to each page.

        Raises NoCoordinatorError, ConnectionFailedError, MalformedFrameError.
        """
        after = None
        bookmark: Mapping[str, object] = {}
        while True:
            fields = await self._ask(
                "stores",
                patient=True,
                timeout_seconds=timeout_seconds,
                kind=kind,
                prefix=prefix,
                after=after,
                limit=STORES_PAGE_ROWS,
                **bookmark,
            )
            try:
                page = [_store_info(row) for row in fields["stores"]]
                after = fields["next"]
                # Given back as it is, with the same `after`.
                bookmark = {name: fields[name] for name in ("bookmark",) if name in fields}
            except (KeyError, TypeError, IndexError, ValueError) as error:
                raise MalformedFrameError(reason=f"stores: {error!r}") from error
            yield page
            if after is None:
                return

    async def _ask(
        self,
        verb: str,
        *,
        patient: bool = False,
        timeout_seconds: float | None = None,
        **fields: object,
    ) -> Mapping[str, Any]:
        def subject() -> str:
            return self.subjects.coordinator(self._tenant, verb)

        return await self._ask_on(subject, self._tenant, patient, timeout_seconds, fields)

    async def _ask_as_operator(self, verb: str, **fields: object) -> Mapping[str, Any]:
        subject = self.subjects.cluster(verb)
        return await self._ask_on(lambda: subject, CLUSTER_TENANT, False, None, fields)

    async def _ask_on(
        self,
        subject: Callable[[], str],
        tenant: str,
        patient: bool,
        timeout_seconds: float | None,
        fields: Mapping[str, object],
    ) -> Mapping[str, Any]:
        try:
            payload = encode_control(**fields)
            reply = await self._request(subject, tenant, payload, patient, timeout_seconds)
        except NoRespondersError as error:
            raise NoCoordinatorError(prefix=self.subjects.prefix) from error
        except BusTimeoutError as error:
            if not self._bus.connected:
                reason = "the connection is lost"
                raise ConnectionFailedError(url="NATS", reason=reason) from error
            raise NoCoordinatorError(prefix=self.subjects.prefix) from error
        fields = decode_control(reply)
        self._recognise(fields.get("cluster"))
        return fields

    def _recognise(self, cluster: object) -> None:
        """Raise OtherClusterError if an answer comes from another cluster than the first one: this
        client's stores do not exist there.
        """
        if not isinstance(cluster, str) or not cluster:
            return
        if self._cluster is None:
            self._cluster = cluster
        elif cluster != self._cluster:
            who = f"the coordinator on prefix {self.subjects.prefix!r}"
            raise OtherClusterError(who=who, found=cluster, expected=self._cluster)

    async def _request(
        self,
        subject: Callable[[], str],
        tenant: str,
        payload: bytes,
        patient: bool,
        timeout_seconds: float | None,
    ) -> bytes:
        """Return the first reply to any copy. With `patient`, wait if nobody listens. Raises what
        `Bus.request` raises."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + (
            CONTROL_TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds
        )
        wait_seconds = RESEND_SECONDS
        copies: list[asyncio.Task[bytes]] = []
        may_be_renewed = True
        try:
            while True:
                left_seconds = give_up_at - loop.time()
                request = self._bus.request(subject(), payload, left_seconds, tenant)
                copies.append(loop.create_task(request, name="holdfast.ask"))
                # Every copy ends by the deadline, so the last wait does too.
                done, _ = await asyncio.wait(
                    copies, timeout=wait_seconds, return_when=asyncio.FIRST_COMPLETED
                )
                wait_seconds = min(2 * wait_seconds, CONTROL_TIMEOUT_SECONDS)
                if not done:
                    continue
                answered = next(copy for copy in copies if copy in done)
                error = answered.exception()
                is_refused = isinstance(error, NotAllowedError) and error.subject != subject()
                if is_refused and may_be_renewed:
                    # NATS has refused what was asked with a token that was renewed meanwhile, or
                    # its inbox. If the next inbox is refused too, that is not why.
                    may_be_renewed = False
                    copies.remove(answered)
                    continue
                nobody = isinstance(error, NoRespondersError)
                if not (nobody and patient and loop.time() + LOOK_SECONDS < give_up_at):
                    return answered.result()
                copies.remove(answered)
                wait_seconds = RESEND_SECONDS
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            for copy in copies:
                copy.cancel()
            await asyncio.gather(*copies, return_exceptions=True)


def _owners(fields: Mapping[str, Any], count: int) -> list[Owner | HoldfastError]:
    rows = fields.get("owners")
    if not isinstance(rows, list) or len(rows) != count:
        raise MalformedFrameError(reason=f"resolve: not an answer with {count} owners")
    try:
        return [
            error_from_wire(row[1], row[2]) if row[0] is None else _owner(*row[:3]) for row in rows
        ]
    except (TypeError, LookupError) as error:
        raise MalformedFrameError(reason=f"resolve: {error!r}") from error


def _owner(server: Any, incarnation: Any, epoch: Any) -> Owner:
    if type(server) is not str or type(incarnation) is not str or type(epoch) is not int:
        raise TypeError("an owner is a server, its incarnation, and an epoch")
    return Owner(server, incarnation, epoch)


def _store_info(row: Sequence[Any]) -> StoreInfo:
    info = StoreInfo(*row[: len(StoreInfo._fields)])
    return info._replace(state=StoreState(info.state))


def _encodings(fields: Mapping[str, Any]) -> frozenset[str]:
    """Return the encodings that the coordinator names. An older coordinator names none."""
    named = fields.get("encodings")
    if not isinstance(named, list):
        return frozenset()
    return frozenset(each for each in named if isinstance(each, str))


def _part(row: list[Any]) -> PartStatistics | None:
    kind, name, tenant, incarnation, age_seconds, told = row[:6]
    try:
        report = decode_report(told)
    except HoldfastError:
        return None
    return PartStatistics(
        str(kind),
        str(name),
        report.host,
        report.started_at_ms,
        float(age_seconds),
        report.samples,
        str(tenant),
        str(incarnation),
    )

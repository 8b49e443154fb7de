"""Answers to requests, made within one open transaction of the state file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.coordinator.answering.assigning import Assigner, WorkAssigner
from holdfast.coordinator.answering.requests import (
    LISTING_ROWS,
    Adopt,
    AskedRate,
    ClaimWork,
    Closed,
    ColdStore,
    Cool,
    Created,
    DeletedRequest,
    Drain,
    Forget,
    ListHelpers,
    ListServers,
    ListStores,
    ListTenants,
    MoveStore,
    Open,
    OpenStoreTotals,
    Register,
    ReleasedStore,
    ReleaseRequest,
    Request,
    ResolveRequest,
    ShowTenant,
    Tend,
    UsageRequest,
    Vacate,
)
from holdfast.coordinator.decisions.assignment import HandOver
from holdfast.coordinator.decisions.claims import ClaimBook, Holder
from holdfast.coordinator.decisions.member import MemberView
from holdfast.coordinator.decisions.tenant_limits import Held, TenantLimits
from holdfast.coordinator.decisions.told_grants import ToldGrants
from holdfast.coordinator.state.server_records import IncarnationState
from holdfast.coordinator.state.state_file import StateFile
from holdfast.coordinator.state.store_records import StoreRow
from holdfast.protocol.access.quota import NO_QUOTA
from holdfast.protocol.compression import ENCODINGS
from holdfast.protocol.control import ServerInfo, ServerState, StoreState, StoreTotals
from holdfast.protocol.errors import (
    FencedError,
    HoldfastError,
    LastServerError,
    NotFoundError,
    ServerInUseError,
)
from holdfast.protocol.limits import TENANTS_PAGE_ROWS
from holdfast.protocol.names import StoreId
from holdfast.protocol.work.cold_work import archive_works
from holdfast.protocol.work.roles import Role

Fields = Mapping[str, Any]
Reply = Fields | HoldfastError


#: A listing reads at least so many rows at a time, although it wants fewer.
_FEWEST_ROWS: Final = 64
#: A place that no store is before.
_BEFORE_ALL: Final = ("", 1)


class Transaction:
    """Answers requests within one open transaction."""

    def __init__(
        self,
        state: StateFile,
        members: Sequence[MemberView],
        now_ms: int,
        limits: TenantLimits | None = None,
        claims: ClaimBook | None = None,
    ) -> None:
        self._state = state
        self._members = members
        self._now_ms = now_ms
        self._limits = limits or TenantLimits()
        self._assigner = Assigner(state, members, self._limits)
        self._work = WorkAssigner(state, members, now_ms, claims or ClaimBook())

    @property
    def told_grants(self) -> list[ToldGrants]:
        """What owners of stores are to be told once the transaction is committed."""
        return self._assigner.told_grants

    def answer(self, request: Request) -> Reply:
        """Return the fields of the reply, or the error to answer with. Raises StorageError."""
        match request:
            case ResolveRequest(stores, zone):
                return {
                    "term": self._state.term,
                    "owners": [self._assigner.owner(s, zone) for s in stores],
                    "encodings": ENCODINGS,
                }
            case ListHelpers(zone):
                caches, archives = (
                    [each.server for each in self._members if each.helps(role, zone)]
                    for role in (Role.CACHE, Role.ARCHIVE)
                )
                parts = self._work.holders(archive_works(zone))
                return {
                    "term": self._state.term,
                    "caches": caches,
                    # For owners of earlier versions.
                    "archives": archives,
                    "parts": parts,
                }
            case (
                Open(server, incarnation)
                | Adopt(server, incarnation)
                | ClaimWork(server, incarnation)
                | Tend(server, incarnation)
                | Created(server, incarnation)
                | Closed(server, incarnation)
                | Cool(server, incarnation)
                | DeletedRequest(server, incarnation)
                | Register(server, incarnation)
                | Vacate(server, incarnation)
                | UsageRequest(server, incarnation)
            ) if self._has_ended(server, incarnation):
                return FencedError(server=server, incarnation=incarnation)
            case Open(server, incarnation, opened):
                grants = [self._assigner.grant(server, incarnation, s) for s in opened]
                ended = self._state.servers.ended_count
                return {"term": self._state.term, "grants": grants, "ended": ended}
            case Adopt(server, incarnation, named):
                grants = [self._assigner.adopt(server, incarnation, store) for store in named]
                return {"term": self._state.term, "grants": grants}
            case ClaimWork():
                return {"term": self._state.term, **self._work.claim(request)}
            case Tend(server, incarnation, tended):
                holder = Holder(server, incarnation)
                found = [self._work.tend(holder, each) for each in tended]
                return {"term": self._state.term, "stores": found}
            case Created(server, incarnation, created):
                for store, revision, totals in created:
                    if self._owned(server, incarnation, store) is not None:
                        self._state.stores.raise_state(store, StoreState.DURABLE)
                        if revision is not None:
                            self._state.stores.set_hot(store, revision)
                            self._state.stores.raise_revision(store, revision)
                        self._note_totals(store, totals)
            case Closed(server, incarnation, closed):
                for store, epoch, revision, totals in closed:
                    row = self._owned(server, incarnation, store)
                    if row is not None and row.epoch == epoch:
                        self._state.stores.raise_revision(store, revision)
                        self._note_totals(store, totals)
            case UsageRequest(server, incarnation, sizes, rates):
                return self._usage(server, incarnation, sizes, rates)
            case Cool(server, incarnation, cooled):
                cold = [self._cool(server, incarnation, each) for each in cooled]
                return {"term": self._state.term, "cold": cold}
            case DeletedRequest(server, incarnation, deleted):
                gone = [self._forget(server, incarnation, each) for each in deleted]
                return {"term": self._state.term, "deleted": gone}
            case ReleaseRequest(server, incarnation, released, to):
                for store, at_epoch, nothing, revision, totals in released:
                    row = self._owned(server, incarnation, store)
                    if row is None or at_epoch not in (None, row.epoch):
                        continue
                    if revision is not None:
                        self._state.stores.raise_revision(store, revision)
                    self._note_totals(store, totals)
                    self._state.stores.release(store)
                    if to and not nothing:
                        self._assigner.hand_over(store, row.epoch, to)
                    if nothing and row.state != StoreState.DURABLE and row.cold is None:
                        self._state.stores.forget(store, row.epoch)
            case Vacate(server, incarnation, number):
                self._state.servers.vacate(server, incarnation, number, self._now_ms)
            case Drain(server, draining):
                return self._drain(server, draining)
            case Forget(server, reassign):
                return self._forget_server(server, reassign)
            case MoveStore(store, server):
                return self._move(store, server)
            case ListServers():
                return {"term": self._state.term, "servers": self._servers()}
            case ListStores():
                return self._list(request)
            case ListTenants(after):
                tenants, next_after = self._state.stores.tenants(after, TENANTS_PAGE_ROWS)
                return {
                    "tenants": tenants,
                    "next": next_after,
                    "use": [self._tenant(each) for each in tenants],
                }
            case ShowTenant(tenant):
                asked = self._limits.reports(tenant, self._now_ms)
                lately = [[server, said[0], said[1]] for server, said in sorted(asked.items())]
                return {"term": self._state.term, "use": self._tenant(tenant), "rates": lately}
        return {"term": self._state.term}

    def _list(self, wanted: ListStores) -> Reply:
        """Return a page of stores, and what to pass as `after` for the next. Both name only stores
        that may be shown: if a bounded number of rows has none, a bookmark says where to go on."""
        sight, stores = wanted.sight, self._state.stores
        if sight is None:
            page, following = stores.page(
                wanted.tenant, wanted.kind, wanted.prefix, wanted.after, wanted.limit
            )
            return {"stores": page, "next": following}
        after, left = sight.begin or wanted.after, LISTING_ROWS
        while True:
            rows = min(max(wanted.limit, _FEWEST_ROWS), left)
            page, following = stores.page(wanted.tenant, wanted.kind, wanted.prefix, after, rows)
            shown = [info for info in page if sight.shows(info.kind, info.name)]
            if len(shown) > wanted.limit or (shown and following is not None):
                # The next page begins behind the last store that may be named.
                del shown[wanted.limit :]
                return {"stores": shown, "next": (shown[-1].name, shown[-1].kind)}
            if following is None:
                return {"stores": shown, "next": None}
            after, left = following, left - len(page)
            if left <= 0:
                again = wanted.after or _BEFORE_ALL
                return {"stores": [], "next": again, "bookmark": sight.sealed(after)}

    def _note_totals(self, store: StoreId, totals: StoreTotals | None) -> None:
        """Record what a store holds, if its owner tells."""
        if totals is not None:
            self._state.stores.set_totals(store, totals)

    def _usage(
        self,
        server: str,
        incarnation: str,
        told: Sequence[OpenStoreTotals],
        rates: Sequence[AskedRate],
    ) -> Reply:
        """Record what open stores hold, and answer what tenants have used, with this server's
        shares of their rates."""
        for store, epoch, totals in told:
            row = self._owned(server, incarnation, store)
            if row is not None and row.epoch == epoch:
                self._state.stores.set_totals(store, totals)
        tenants, elsewhere = {}, {}
        for tenant, operations, asked_bytes, *held in rates:
            shares = self._limits.asked(
                tenant, server, operations, asked_bytes, self._now_ms, Held(*held)
            )
            tenants[tenant] = [self._state.stores.use(tenant).bytes, *shares]
            elsewhere[tenant] = self._limits.held(tenant, self._now_ms, but=server)
        return {"term": self._state.term, "tenants": tenants, "elsewhere": elsewhere}

    def _tenant(self, tenant: str) -> list[object]:
        """Return the use and the quota of a tenant: `[streams, kvs, bytes, quota, open stores,
        uploads]`."""
        quota = self._limits.quotas.get(tenant, NO_QUOTA)
        held = self._limits.held(tenant, self._now_ms)
        return [*self._state.stores.use(tenant), quota.to_wire(), *held]

    def _cool(self, server: str, incarnation: str, cooled: ColdStore) -> bool:
        row = self._owned(server, incarnation, cooled.store)
        if row is None:
            # The next owner has another epoch, so none has had it since.
            row = self._state.stores.get(cooled.store)
            if row is None or row.promised or not row.owner_ended:
                return False
            if not self._work.holds(Holder(server, incarnation), cooled.claim):
                return False
        if row.epoch != cooled.epoch:
            return False
        self._state.stores.set_cold(cooled.store, cooled.revision)
        return True

    def _forget(self, server: str, incarnation: str, deleted: ReleasedStore) -> bool:
        row = self._state.stores.get(deleted.store)
        if row is None or row.epoch != deleted.epoch:
            return False
        if (row.server, row.incarnation) == (server, incarnation):
            self._state.stores.set_deleted(deleted.store)
            return True
        # The answer was lost, so the server asks again.
        return not row.server and row.state == StoreState.UNKNOWN

    def _owned(self, server: str, incarnation: str, store: StoreId) -> StoreRow | None:
        """Return the record of a store that the incarnation owns. Late retries may name others, for
        which this is None."""
        row = self._state.stores.get(store)
        if row is None or (row.server, row.incarnation) != (server, incarnation):
            return None
        return row

    def _drain(self, server: str, draining: bool) -> Reply:
        drains = self._state.servers.drains()
        for member in self._members:
            if member.server == server and member.state is not ServerState.DEAD:
                break
        else:
            return NotFoundError(what="live server", name=server)
        if draining and server not in drains and Role.PERSIST in member.roles:
            others = {each.server for each in self._members if each.takes_new_stores} - drains
            if not others - {server}:
                return LastServerError(server=server)
        self._state.servers.set_drain(server, draining)
        return {"term": self._state.term, "incarnation": member.incarnation}

    def _move(self, store: StoreId, server: str) -> Reply:
        """Return who owns the store now, and whether that one must hand it over first."""
        try:
            decision = self._assigner.move(store, server)
        except NotFoundError as error:
            return error
        if decision is None:
            return NotFoundError(what="store", name=store.name)
        is_moving = isinstance(decision, HandOver)
        return {"term": self._state.term, "owner": decision.owner, "moving": is_moving}

    def _forget_server(self, server: str, reassign: bool) -> Reply:
        member = next((each for each in self._members if each.server == server), None)
        if member is None:
            return NotFoundError(what="server", name=server)
        if member.state is not ServerState.DEAD:
            reason = f"it is {member.state}, not dead"
            return ServerInUseError(server=server, reason=reason)
        count = self._state.servers.assigned_to_dead(server)
        if count and not reassign:
            reason = f"it is the last owner of {count:,} stores, which nobody has used since"
            return ServerInUseError(server=server, reason=reason)
        self._state.servers.forget(server)
        return {"term": self._state.term, "incarnation": member.incarnation}

    def _servers(self) -> list[ServerInfo]:
        infos = []
        claims = Counter(claim.holder for claim in self._state.claims.all().values())
        for member in self._members:
            known = self._state.servers.get(member.server, member.incarnation)
            infos.append(
                ServerInfo(
                    server=member.server,
                    incarnation=member.incarnation,
                    state=member.state.value,
                    heartbeat_age_seconds=member.heartbeat_age_seconds,
                    assigned_stores=known[1] if known is not None else 0,
                    open_stores=member.open_stores,
                    operations_per_second=member.operations_per_second,
                    log_bytes=member.log_bytes,
                    snapshot_backlog=member.snapshot_backlog,
                    bucket_requests=member.bucket_requests,
                    asks_for_tokens=member.asks_for_tokens,
                    roles=member.roles,
                    claims=claims[Holder(member.server, member.incarnation)],
                    zone=member.zone,
                )
            )
        return infos

    def _has_ended(self, server: str, incarnation: str) -> bool:
        known = self._state.servers.get(server, incarnation)
        return known is not None and known[0] is not IncarnationState.PRESENT

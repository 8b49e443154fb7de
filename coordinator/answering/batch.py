"""What one loop turn asked of the state file, done in one transaction.

Requests in, reply fields or an error for each out, in order. Replies may leave once `execute`
returns, since all they say is durable then (group commit: one sync for any number of requests).
When the transaction fails, records and requests are tried one by one, so that on a full disk
whoever only reads is still served, and a request that raises what nobody expected fails alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.coordinator.answering.requests import (
    Adopt,
    Closed,
    ColdStore,
    Cool,
    Created,
    DeletedRequest,
    Drain,
    ListServers,
    ListStores,
    ListTenants,
    Open,
    OpenStore,
    Register,
    ReleaseAll,
    ReleasedStore,
    ReleaseRequest,
    Request,
    ResolveRequest,
    Vacate,
)
from holdfast.coordinator.decisions.assignment import (
    Assign,
    Assignment,
    Balancer,
    Candidate,
    Keep,
    NotOwner,
    decide,
    decide_adopt,
    decide_open,
)
from holdfast.coordinator.decisions.events import (
    RecordDead,
    RecordLive,
)
from holdfast.coordinator.decisions.member import MemberView
from holdfast.coordinator.state.lost_state import SurveyedStore
from holdfast.coordinator.state.server_records import IncarnationState
from holdfast.coordinator.state.state_file import StateFile
from holdfast.coordinator.state.store_records import StoreRow
from holdfast.protocol.compression import ENCODINGS
from holdfast.protocol.control import Grant, ServerInfo, ServerState, StoreState
from holdfast.protocol.errors import (
    DeposedError,
    FencedError,
    HoldfastError,
    LastServerError,
    NoServerError,
    NotFoundError,
    NotOwnerError,
    StorageError,
    error_to_wire,
    internal_error,
)
from holdfast.protocol.limits import TENANTS_PAGE_ROWS
from holdfast.protocol.names import StoreId


@dataclass(frozen=True, slots=True)
class RecordFound:
    """Stores whose files the survey found."""

    stores: tuple[SurveyedStore, ...]


@dataclass(frozen=True, slots=True)
class RecordFoundCold:
    """Stores that the survey found in the bucket's manifests, with epoch and revision; None of one
    that was deleted."""

    stores: tuple[tuple[StoreId, int, int | None], ...]


@dataclass(frozen=True, slots=True)
class RecordSurveyed:
    """The survey is done, also that of the bucket or only that of the files."""

    with_manifests: bool = False


Record = RecordLive | RecordDead | RecordFound | RecordFoundCold | RecordSurveyed
Fields = Mapping[str, Any]
Reply = Fields | HoldfastError


@dataclass(frozen=True, slots=True)
class RequestBatch:
    """`records` come first and are durable before any request is looked at; `members` is the view
    that the requests are judged by."""

    records: Sequence[Record]
    requests: Sequence[Request]
    members: Sequence[MemberView]
    now_ms: int


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """`failure` tells why the records are not durable. One reply for each request. `mishaps` are
    exceptions that nobody expected, each answered."""

    failure: StorageError | None
    replies: list[Reply]
    mishaps: Sequence[Exception] = ()


def execute(state: StateFile, batch: RequestBatch) -> BatchOutcome:
    """Do the batch. Errors of the storage are in the outcome and are not raised."""
    try:
        return BatchOutcome(None, _commit(state, batch, batch.records, batch.requests))
    except DeposedError:
        raise
    except Exception:  # noqa: BLE001 (raised again by the one that it came from)
        return _one_by_one(state, batch)


def _one_by_one(state: StateFile, batch: RequestBatch) -> BatchOutcome:
    mishaps: list[Exception] = []
    failure: StorageError | None = None
    try:
        _commit(state, batch, batch.records, ())
    except StorageError as error:
        failure = error
    replies: list[Reply] = []
    for request in batch.requests:
        try:
            replies.extend(_commit(state, batch, (), (request,)))
        except StorageError as error:
            # A server that ends must not be told so before it is recorded.
            replies.append(error)
        except HoldfastError:
            raise
        except Exception as error:  # noqa: BLE001 (it is this request's answer)
            mishaps.append(error)
            replies.append(internal_error(type(request).__name__, error))
        else:
            if failure is not None and isinstance(request, ReleaseAll):
                replies[-1] = failure
    return BatchOutcome(failure, replies, mishaps)


def _commit(
    state: StateFile, batch: RequestBatch, records: Sequence[Record], requests: Sequence[Request]
) -> list[Reply]:
    with state.transaction():
        for record in records:
            _write(state, record, batch.now_ms)
        transaction = _Transaction(state, batch.members, batch.now_ms)
        return [transaction.answer(request) for request in requests]


def _write(state: StateFile, record: Record, now_ms: int) -> None:
    match record:
        case RecordLive(server, incarnation):
            state.servers.add(server, incarnation, now_ms)
        case RecordDead(server, incarnation, _, released):
            ended = IncarnationState.RELEASED if released else IncarnationState.DEAD
            state.servers.end(server, incarnation, ended, now_ms)
            if released:
                state.servers.set_drain(server, False)
        case RecordFound(stores):
            for found in stores:
                state.stores.found(*found)
        case RecordFoundCold(stores_found):
            for store, epoch, revision in stores_found:
                if revision is None:
                    state.stores.found_deleted(store, epoch)
                else:
                    state.stores.found_cold(store, epoch, revision)
        case RecordSurveyed(with_manifests):
            state.cluster.set_surveying(False)
            if with_manifests:
                state.cluster.set_manifests_surveyed()


class _Transaction:
    """Answers requests within one open transaction."""

    def __init__(self, state: StateFile, members: Sequence[MemberView], now_ms: int) -> None:
        self._state = state
        self._members = members
        self._now_ms = now_ms
        # Nothing can be assigned to a member that could not be recorded yet.
        self._recorded = state.servers.present()
        self._states = {
            key: member.state
            for member in members
            if (key := (member.server, member.incarnation)) in self._recorded
        }
        self._knows_all_stores = state.cluster.knows_all_stores()
        self._made_balancer: Balancer | None = None

    def answer(self, request: Request) -> Reply:
        match request:
            case ResolveRequest(stores):
                return {
                    "term": self._state.term,
                    "owners": [self._owner(s) for s in stores],
                    "encodings": ENCODINGS,
                }
            case (
                Open(server, incarnation)
                | Adopt(server, incarnation)
                | Created(server, incarnation)
                | Closed(server, incarnation)
                | Cool(server, incarnation)
                | DeletedRequest(server, incarnation)
                | Register(server, incarnation)
                | Vacate(server, incarnation)
            ) if self._has_ended(server, incarnation):
                return FencedError(server=server, incarnation=incarnation)
            case Open(server, incarnation, opened):
                grants = [self._grant(server, incarnation, s) for s in opened]
                return {"term": self._state.term, "grants": grants}
            case Adopt(server, incarnation, named):
                grants = [self._adopt(server, incarnation, store) for store in named]
                return {"term": self._state.term, "grants": grants}
            case Created(server, incarnation, created):
                for store, revision in created:
                    if self._owned(server, incarnation, store) is not None:
                        self._state.stores.raise_state(store, StoreState.DURABLE)
                        if revision is not None:
                            self._state.stores.set_hot(store, revision)
                            self._state.stores.raise_revision(store, revision)
            case Closed(server, incarnation, closed):
                for store, epoch, revision in closed:
                    row = self._owned(server, incarnation, store)
                    if row is not None and row.epoch == epoch:
                        self._state.stores.raise_revision(store, revision)
            case Cool(server, incarnation, cooled):
                cold = [self._cool(server, incarnation, each) for each in cooled]
                return {"term": self._state.term, "cold": cold}
            case DeletedRequest(server, incarnation, deleted):
                gone = [self._forget(server, incarnation, each) for each in deleted]
                return {"term": self._state.term, "deleted": gone}
            case ReleaseRequest(server, incarnation, released):
                for store, at_epoch, nothing, revision in released:
                    row = self._owned(server, incarnation, store)
                    if row is None or at_epoch not in (None, row.epoch):
                        continue
                    if revision is not None:
                        self._state.stores.raise_revision(store, revision)
                    self._state.stores.release(store)
                    if nothing and row.state != StoreState.DURABLE and row.cold is None:
                        self._state.stores.forget(store, row.epoch)
            case Vacate(server, incarnation, number):
                self._state.servers.vacate(server, incarnation, number, self._now_ms)
            case Drain(server, draining):
                return self._drain(server, draining)
            case ListServers():
                return {"term": self._state.term, "servers": self._servers()}
            case ListStores(tenant, kind, prefix, after, limit):
                page, following = self._state.stores.page(tenant, kind, prefix, after, limit)
                return {"stores": page, "next": following}
            case ListTenants(after):
                tenants, next_after = self._state.stores.tenants(after, TENANTS_PAGE_ROWS)
                return {"tenants": tenants, "next": next_after}
        return {"term": self._state.term}

    def _owner(self, store: StoreId | HoldfastError) -> Sequence[object]:
        if isinstance(store, HoldfastError):
            return _error_slot(store)
        row = self._state.stores.get(store)
        if row is not None and row.promised and not self._takes_new(row.server, row.incarnation):
            row = None
        decision = decide(_assignment(row), self._balancer, self._first_epoch())
        match decision:
            case Keep(owner):
                return owner
            case Assign(owner):
                if row is None or row.promised:
                    self._state.stores.promise(store, owner)
                else:
                    self._state.stores.assign(store, owner)
                return owner
            case _:
                return _error_slot(NoServerError())

    def _takes_new(self, server: str, incarnation: str) -> bool:
        return any(
            each.takes_new_stores
            for each in self._members
            if (each.server, each.incarnation) == (server, incarnation)
        )

    def _first_epoch(self) -> int:
        return self._state.cluster.last_forgotten_epoch() + 1

    def _grant(
        self, server: str, incarnation: str, opened: OpenStore | HoldfastError
    ) -> Sequence[object]:
        if isinstance(opened, HoldfastError):
            return _error_slot(opened)
        row = self._state.stores.get(opened.store)
        member_state = self._states.get((server, incarnation))
        decision = decide_open(
            _assignment(row), server, incarnation, member_state, self._first_epoch()
        )
        if isinstance(decision, NotOwner):
            return _error_slot(NotOwnerError(server=server))
        owner = decision.owner
        if opened.known_epoch is not None:
            owner = owner._replace(epoch=max(owner.epoch, opened.known_epoch + 1))
        promised = row is not None and row.promised
        if promised or isinstance(decision, Assign) or owner != decision.owner:
            self._state.stores.assign(opened.store, owner)
        before = known = StoreState.UNKNOWN if row is None else StoreState(row.state)
        if opened.create and known is StoreState.UNKNOWN:
            known = StoreState.CREATED
            self._state.stores.raise_state(opened.store, known)
        cold = row.cold if row is not None else None
        if known is not StoreState.DURABLE and not self._knows_all_stores:
            cold = 0
        revision = row.revision if row is not None else 0
        return _wire_grant(Grant(owner.epoch, known, before, cold, revision))

    def _adopt(self, server: str, incarnation: str, store: StoreId) -> Sequence[object]:
        row = self._state.stores.get(store)
        decision = decide_adopt(
            _assignment(row), server, incarnation, self._states.get((server, incarnation))
        )
        if row is None or row.promised or isinstance(decision, NotOwner):
            return _error_slot(NotOwnerError(server=server))
        if isinstance(decision, Assign):
            self._state.stores.assign(store, decision.owner)
        epoch = decision.owner.epoch
        return _wire_grant(Grant(epoch, row.state, row.state, row.cold, row.revision))

    def _cool(self, server: str, incarnation: str, cooled: ColdStore) -> bool:
        row = self._owned(server, incarnation, cooled.store)
        if row is None or row.epoch != cooled.epoch:
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
        # Asked again, because the answer was lost.
        return not row.server and row.state == StoreState.UNKNOWN

    def _owned(self, server: str, incarnation: str, store: StoreId) -> StoreRow | None:
        """Return what is recorded of a store that is the incarnation's; None of any other, which a
        late repetition may name."""
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
        if draining and server not in drains:
            others = {each.server for each in self._members if each.takes_new_stores} - drains
            if not others - {server}:
                return LastServerError(server=server)
        self._state.servers.set_drain(server, draining)
        return {"term": self._state.term, "incarnation": member.incarnation}

    def _servers(self) -> list[ServerInfo]:
        infos = []
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
                )
            )
        return infos

    def _has_ended(self, server: str, incarnation: str) -> bool:
        known = self._state.servers.get(server, incarnation)
        return known is not None and known[0] is not IncarnationState.PRESENT

    @property
    def _balancer(self) -> Balancer:
        if self._made_balancer is None:
            drains = self._state.servers.drains()
            self._made_balancer = Balancer(
                Candidate(
                    member.server,
                    member.incarnation,
                    self._recorded[member.server, member.incarnation],
                    member.operations_per_second,
                )
                for member in self._members
                if member.takes_new_stores
                and (member.server, member.incarnation) in self._recorded
                and member.server not in drains
            )
        return self._made_balancer


def _assignment(row: StoreRow | None) -> Assignment | None:
    if row is None:
        return None
    return Assignment(row.server, row.incarnation, row.epoch, row.owner_ended)


def _wire_grant(grant: Grant) -> Sequence[object]:
    """Return a grant without what most have not."""
    fields = (grant.epoch, int(grant.state), int(grant.state_before))
    if grant.revision:
        return (*fields, grant.cold, grant.revision)
    return fields if grant.cold is None else (*fields, grant.cold)


def _error_slot(error: HoldfastError) -> list[object]:
    return [None, *error_to_wire(error)]

"""What one loop turn asked of the state file, done in one transaction.

Requests in, reply fields or an error for each out, in order. Replies may leave once `execute`
returns, since all they say is durable then (group commit: one sync for any number of requests).
When the transaction fails, records and requests are tried one by one, so that on a full disk
whoever only reads is still served.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.coordinator.assignment import (
    Assign,
    Assignment,
    Balancer,
    Candidate,
    Keep,
    NotOwner,
    decide,
    decide_open,
)
from holdfast.coordinator.events import (
    RecordDead,
    RecordLive,
)
from holdfast.coordinator.membership import (
    MemberView,
)
from holdfast.coordinator.requests import (
    Created,
    ListServers,
    ListStores,
    Open,
    OpenStore,
    Register,
    Release,
    ReleaseAll,
    Request,
    Resolve,
)
from holdfast.coordinator.state_file import IncarnationState, StateFile, StoreRow
from holdfast.protocol.control import ServerInfo, StoreState
from holdfast.protocol.errors import (
    FencedError,
    HoldfastError,
    NoServerError,
    NotOwnerError,
    StorageError,
    error_to_wire,
)
from holdfast.protocol.names import StoreId

Record = RecordLive | RecordDead
Fields = Mapping[str, Any]
Reply = Fields | HoldfastError


@dataclass(frozen=True, slots=True)
class Batch:
    """`records` come first and are durable before any request is looked at; `members` is the view
    that the requests are judged by."""

    records: Sequence[Record]
    requests: Sequence[Request]
    members: Sequence[MemberView]
    now_ms: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """`failure` tells why the records are not durable. One reply for each request."""

    failure: StorageError | None
    replies: list[Reply]


def execute(state: StateFile, batch: Batch) -> Outcome:
    """Do the batch. Errors of the storage are in the outcome and are not raised."""
    try:
        return Outcome(None, _commit(state, batch, batch.records, batch.requests))
    except StorageError:
        return _one_by_one(state, batch)


def _one_by_one(state: StateFile, batch: Batch) -> Outcome:
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
        else:
            if failure is not None and isinstance(request, ReleaseAll):
                replies[-1] = failure
    return Outcome(failure, replies)


def _commit(
    state: StateFile, batch: Batch, records: Sequence[Record], requests: Sequence[Request]
) -> list[Reply]:
    with state.transaction():
        for record in records:
            if isinstance(record, RecordLive):
                state.add_incarnation(record.server, record.incarnation, batch.now_ms)
            else:
                ended = IncarnationState.RELEASED if record.released else IncarnationState.DEAD
                state.end_incarnation(record.server, record.incarnation, ended, batch.now_ms)
        transaction = _Transaction(state, batch.members)
        return [transaction.answer(request) for request in requests]


class _Transaction:
    """Answers requests within one open transaction."""

    def __init__(self, state: StateFile, members: Sequence[MemberView]) -> None:
        self._state = state
        self._members = members
        # Nothing can be assigned to a member that could not be recorded yet.
        self._recorded = state.present()
        self._states = {
            key: member.state
            for member in members
            if (key := (member.server, member.incarnation)) in self._recorded
        }
        self._made_balancer: Balancer | None = None

    def answer(self, request: Request) -> Reply:
        match request:
            case Resolve(stores):
                return {"term": self._state.term, "owners": [self._owner(s) for s in stores]}
            case (
                Open(server, incarnation)
                | Created(server, incarnation)
                | Register(server, incarnation)
            ) if self._has_ended(server, incarnation):
                return FencedError(server=server, incarnation=incarnation)
            case Open(server, incarnation, opened):
                return {"grants": [self._grant(server, incarnation, s) for s in opened]}
            case Created(server, incarnation, named):
                for store in self._owned(server, incarnation, named):
                    self._state.raise_state(store, StoreState.DURABLE)
                return {}
            case Release(server, incarnation, named):
                for store in self._owned(server, incarnation, named):
                    self._state.release(store)
                return {}
            case Register():
                return {"term": self._state.term}
            case ListServers():
                return {"term": self._state.term, "servers": self._servers()}
            case ListStores(tenant, kind, prefix, after, limit):
                page, following = self._state.stores(tenant, kind, prefix, after, limit)
                return {"stores": page, "next": following}
            case _:
                return {}

    def _owner(self, store: StoreId | HoldfastError) -> Sequence[object]:
        if isinstance(store, HoldfastError):
            return _error_slot(store)
        decision = decide(_assignment(self._state.store(store)), self._balancer)
        match decision:
            case Keep(owner):
                return owner
            case Assign(owner):
                self._state.assign(store, owner)
                return owner
            case _:
                return _error_slot(NoServerError())

    def _grant(
        self, server: str, incarnation: str, opened: OpenStore | HoldfastError
    ) -> Sequence[object]:
        if isinstance(opened, HoldfastError):
            return _error_slot(opened)
        row = self._state.store(opened.store)
        member_state = self._states.get((server, incarnation))
        decision = decide_open(_assignment(row), server, incarnation, member_state)
        if isinstance(decision, NotOwner):
            return _error_slot(NotOwnerError(server=server))
        if isinstance(decision, Assign):
            self._state.assign(opened.store, decision.owner)
        known = StoreState.UNKNOWN if row is None else StoreState(row.state)
        if opened.create and known is StoreState.UNKNOWN:
            known = StoreState.CREATED
            self._state.raise_state(opened.store, known)
        return (decision.owner.epoch, int(known))

    def _owned(self, server: str, incarnation: str, stores: Iterable[StoreId]) -> Iterable[StoreId]:
        """Of the stores, those that are the incarnation's: the others are a late repetition's."""
        for store in stores:
            row = self._state.store(store)
            if row is not None and (row.server, row.incarnation) == (server, incarnation):
                yield store

    def _servers(self) -> list[ServerInfo]:
        infos = []
        for member in self._members:
            known = self._state.incarnation(member.server, member.incarnation)
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
                )
            )
        return infos

    def _has_ended(self, server: str, incarnation: str) -> bool:
        known = self._state.incarnation(server, incarnation)
        return known is not None and known[0] is not IncarnationState.PRESENT

    @property
    def _balancer(self) -> Balancer:
        if self._made_balancer is None:
            self._made_balancer = Balancer(
                Candidate(
                    member.server,
                    member.incarnation,
                    self._recorded[member.server, member.incarnation],
                    member.operations_per_second,
                )
                for member in self._members
                if member.takes_new_stores and (member.server, member.incarnation) in self._recorded
            )
        return self._made_balancer


def _assignment(row: StoreRow | None) -> Assignment | None:
    if row is None:
        return None
    return Assignment(row.server, row.incarnation, row.epoch, row.owner_ended)


def _error_slot(error: HoldfastError) -> list[object]:
    return [None, *error_to_wire(error)]

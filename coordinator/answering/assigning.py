"""Which server gets a store: the decisions of `assignment.py`, recorded in the open transaction.

Each method returns the element of a store in a reply: an owner, a grant, or an error.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.coordinator.answering.requests import (
    OpenStore,
)
from holdfast.coordinator.decisions.assignment import (
    Assign,
    Assignment,
    Balancer,
    Candidate,
    HandOver,
    Keep,
    NotOwner,
    decide,
    decide_adopt,
    decide_move,
    decide_open,
)
from holdfast.coordinator.decisions.member import MemberView
from holdfast.coordinator.decisions.tenant_limits import TenantLimits
from holdfast.coordinator.state.state_file import StateFile
from holdfast.coordinator.state.store_records import StoreRow
from holdfast.protocol.control import Grant, Owner, StoreState
from holdfast.protocol.errors import (
    HoldfastError,
    NoServerError,
    NotFoundError,
    NotOwnerError,
    error_to_wire,
)
from holdfast.protocol.names import StoreId


class Assigner:
    """Assigns stores within one open transaction."""

    def __init__(
        self, state: StateFile, members: Sequence[MemberView], limits: TenantLimits
    ) -> None:
        self._state = state
        self._limits = limits
        self._members = members
        # No store can be assigned to a member that is not recorded yet.
        self._recorded = state.servers.present()
        self._states = {
            key: member.state
            for member in members
            if (key := (member.server, member.incarnation)) in self._recorded
        }
        self._knows_all_stores = state.cluster.knows_all_stores()
        self._made_balancer: Balancer | None = None

    def owner(self, store: StoreId | HoldfastError) -> Sequence[object]:
        """Return the owner of a store, assigning one if it has none."""
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

    def grant(
        self, server: str, incarnation: str, opened: OpenStore | HoldfastError
    ) -> Sequence[object]:
        """Return whether a server may open a store, and with which epoch."""
        if isinstance(opened, HoldfastError):
            return _error_slot(opened)
        row = self._state.stores.get(opened.store)
        member_state = self._states.get((server, incarnation))
        decision = decide_open(
            _assignment(row), server, incarnation, member_state, self._first_epoch()
        )
        if isinstance(decision, NotOwner):
            return _error_slot(NotOwnerError(server=server))
        before = known = StoreState.UNKNOWN if row is None else StoreState(row.state)
        creates = opened.create and known is StoreState.UNKNOWN
        if creates and (refusal := self._too_many(opened.store.tenant)) is not None:
            return _error_slot(refusal)
        owner = decision.owner
        if opened.known_epoch is not None:
            owner = owner._replace(epoch=max(owner.epoch, opened.known_epoch + 1))
        promised = row is not None and row.promised
        if promised or isinstance(decision, Assign) or owner != decision.owner:
            self._state.stores.assign(opened.store, owner)
        if creates:
            known = StoreState.CREATED
            self._state.stores.raise_state(opened.store, known)
        cold = row.cold if row is not None else None
        if known is not StoreState.DURABLE and not self._knows_all_stores:
            cold = 0
        revision = row.revision if row is not None else 0
        return _wire_grant(Grant(owner.epoch, known, before, cold, revision))

    def adopt(self, server: str, incarnation: str, store: StoreId) -> Sequence[object]:
        """Return whether a server may have a store that nobody owns."""
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

    def move(self, store: StoreId, server: str) -> Keep | Assign | HandOver | None:
        """Return how a store gets to `server`, and assign it if nobody owns it. None: there is no
        such store. Raises NotFoundError if the server takes no stores."""
        row = self._state.stores.get(store)
        current = _assignment(row)
        if row is None or current is None or row.promised or row.state == StoreState.UNKNOWN:
            return None
        incarnation = self._incarnation_of(server)
        if incarnation is None:
            raise NotFoundError(what="server that takes stores", name=server)
        decision = decide_move(current, server, incarnation)
        if isinstance(decision, Assign):
            self._state.stores.assign(store, decision.owner)
        return decision

    def hand_over(self, store: StoreId, epoch: int, server: str) -> None:
        """Assign a store that its owner of `epoch` has released to `server`, if that takes
        stores."""
        incarnation = self._incarnation_of(server)
        if incarnation is not None:
            self._state.stores.assign(store, Owner(server, incarnation, epoch + 1))

    def _incarnation_of(self, server: str) -> str | None:
        """Return the incarnation of a server that takes new stores, or None."""
        if server in self._state.servers.drains():
            return None
        for member in self._members:
            known = (member.server, member.incarnation) in self._recorded
            if member.server == server and member.takes_new_stores and known:
                return member.incarnation
        return None

    def _too_many(self, tenant: str) -> HoldfastError | None:
        """Return why the tenant may not have another store, or None."""
        if self._limits.max_stores(tenant) is None:
            return None
        use = self._state.stores.use(tenant)
        return self._limits.store_refusal(tenant, use.streams + use.kvs)

    def _takes_new(self, server: str, incarnation: str) -> bool:
        return any(
            each.takes_new_stores
            for each in self._members
            if (each.server, each.incarnation) == (server, incarnation)
        )

    def _first_epoch(self) -> int:
        return self._state.cluster.last_forgotten_epoch() + 1

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
    """Return a grant without the trailing fields that it does not need."""
    fields = (grant.epoch, int(grant.state), int(grant.state_before))
    if grant.revision:
        return (*fields, grant.cold, grant.revision)
    return fields if grant.cold is None else (*fields, grant.cold)


def _error_slot(error: HoldfastError) -> list[object]:
    return [None, *error_to_wire(error)]

"""Which server gets a store, and which one a piece of cold work: the decisions of `assignment.py`
and of `claims.py`, recorded in the open transaction.

Each method about a store returns the element of a store in a reply: an owner, a grant, or an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.coordinator.answering.requests import (
    ClaimWork,
    HeldClaim,
    OpenStore,
    StoreToTend,
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
from holdfast.coordinator.decisions.claims import (
    ClaimBook,
    Holder,
    WorkClaim,
    divide,
    next_epoch,
    takes_work,
)
from holdfast.coordinator.decisions.member import MemberView
from holdfast.coordinator.decisions.tenant_limits import TenantLimits
from holdfast.coordinator.decisions.told_grants import GrantsToTell, ToldGrants
from holdfast.coordinator.state.state_file import StateFile
from holdfast.coordinator.state.store_records import StoreRow
from holdfast.protocol.control import Grant, Owner, ServerState, StoreState
from holdfast.protocol.errors import (
    HoldfastError,
    NoServerError,
    NotFoundError,
    NotOwnerError,
    error_to_wire,
)
from holdfast.protocol.names import StoreId
from holdfast.protocol.work.roles import Role
from holdfast.protocol.work.zones import NOWHERE


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
        # And none to one that is not there to own stores.
        self._states = {
            key: member.state
            for member in members
            if (key := (member.server, member.incarnation)) in self._recorded
            and Role.PERSIST in member.roles
        }
        self._knows_all_stores = state.cluster.knows_all_stores()
        #: Also of dead servers.
        self._zones = {member.server: member.zone for member in members}
        self._made_balancer: Balancer | None = None
        self._to_tell = GrantsToTell(members)

    @property
    def told_grants(self) -> list[ToldGrants]:
        """What owners are to be told of the stores that clients asked for."""
        return self._to_tell.told

    def owner(self, store: StoreId | HoldfastError, zone: str = NOWHERE) -> Sequence[object]:
        """Return the owner of a store, assigning one if it has none: near its last one, or else in
        the `zone` of the client that asks."""
        if isinstance(store, HoldfastError):
            return _error_slot(store)
        row = self._state.stores.get(store)
        if row is not None and row.promised and not self._takes_new(row.server, row.incarnation):
            row = None
        last_zone = self._zones.get(row.server, NOWHERE) if row is not None else NOWHERE
        decision = decide(
            _assignment(row), self._balancer, self._first_epoch(), (last_zone, zone)
        )
        match decision:
            case Keep(owner) | Assign(owner):
                if isinstance(decision, Assign):
                    if row is None or row.promised:
                        self._state.stores.promise(store, owner)
                    else:
                        self._state.stores.assign(store, owner)
                if row is not None and not row.promised and self._may_open(owner):
                    self._to_tell.named(
                        store, owner, state=row.state, cold=row.cold, revision=row.revision
                    )
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

    def _may_open(self, owner: Owner) -> bool:
        """Tell if the owner would be granted the store if it asked."""
        state = self._states.get((owner.server, owner.incarnation))
        return state is not None and state is not ServerState.DEAD

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
                    member.zone,
                )
                for member in self._members
                if member.takes_new_stores
                and (member.server, member.incarnation) in self._recorded
                and member.server not in drains
            )
        return self._made_balancer


class WorkAssigner:
    """Divides cold work within one open transaction."""

    def __init__(
        self, state: StateFile, members: Sequence[MemberView], now_ms: int, book: ClaimBook
    ) -> None:
        self._state = state
        self._members = members
        self._now_ms = now_ms
        self._book = book
        self._known: dict[str, WorkClaim] | None = None

    def claim(self, asked: ClaimWork) -> dict[str, object]:
        """Divide the cold work anew, as far as the server that asks is concerned."""
        asker, records = Holder(asked.server, asked.incarnation), self._state.claims
        for work, epoch in asked.gives_back:
            records.give_back(work, asker, epoch)
        claims = self._known = records.all()
        me = (one for one in self._members if Holder(one.server, one.incarnation) == asker)
        member = next(me, None)
        wanted = [work for work, claim in claims.items() if claim.holder == asker]
        if member is not None and member.state is ServerState.SUSPECT:
            # It keeps what it has. One that drains, or has not this role, is to give it back.
            wanted = []
        elif member is not None and takes_work(member) and asker in self._state.servers.present():
            rivals = self._book.rivals(asker, self._members, self._now_ms)
            self._book.asked(asker, asked.offers, self._now_ms)
            division = divide(asker, asked.offers, claims, rivals)
            wanted = division.wanted
            for work in division.takes:
                epoch = next_epoch(claims.get(work), self._state.term)
                records.take(work, asker, epoch)
                claims[work] = WorkClaim(asker, epoch)
        held = [[work, claim.epoch] for work, claim in claims.items() if claim.holder == asker]
        return {"claims": held, "wanted": wanted}

    def holders(self, works: Iterable[str]) -> list[list[object]]:
        """Return `[work, server, epoch]` of those of these works that somebody has."""
        claims = self._state.claims.all()
        found = ((work, claims[work]) for work in works if work in claims)
        return [
            [work, claim.holder.server, claim.epoch]
            for work, claim in found
            if claim.holder is not None
        ]

    def holds(self, holder: Holder, claim: HeldClaim | None) -> bool:
        """Tell whether a server has a piece of work in this epoch."""
        if claim is None:
            return False
        if self._known is None:
            self._known = self._state.claims.all()
        return self._known.get(claim.work) == WorkClaim(holder, claim.epoch)

    def tend(self, holder: Holder, tended: StoreToTend) -> list[object] | None:
        """Return the epoch of a store, and whether the server owns it; None if the store is not for
        it to work on."""
        row = self._state.stores.get(tended.store)
        if row is None or row.promised or row.state == StoreState.UNKNOWN:
            return None
        if not row.owner_ended:
            return [row.epoch, True] if Holder(row.server, row.incarnation) == holder else None
        return [row.epoch, False] if self.holds(holder, tended.claim) else None


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

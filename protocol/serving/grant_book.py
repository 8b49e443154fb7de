"""The grant book: what one server knows of the grants that requests name.

Pure: events in, effects out, `now` an argument. `grant_desk.py` drives it, in persist servers
and in the coordinator. A request names its grant by the id of a token:

    known      it is served at once, by one look-up in a dictionary
    unknown    it waits, in order, until the token is loaded
    stale      it waits until the revocations are read, if that was too long ago
    refused    the token does not exist, or is expired, revoked, or another tenant's

Invariants:

- A request is served only within REVOCATIONS_FRESH_SECONDS of a reading of the revocations in which
  its token was not. So a revoked token is refused after that time, and if the revocations cannot be
  read, everything is: with an error that clients retry.
- Requests of one grant are served in the order of their arrival.
- What waits is bounded, and tenants share the room. Loads are bounded, and tenants take turns. So
  made-up ids cost their tenant's requests some milliseconds, and a file look-up each.
- `now` is monotonic. `wall`, in seconds since 1970, only refuses: it decides what has expired.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from holdfast.protocol.access.grants import KnownRights, TokenGrant, no_token
from holdfast.protocol.access.tokens import Token
from holdfast.protocol.errors import (
    BusyError,
    HoldfastError,
    NotAllowedError,
    RegistryUnreadableError,
)
from holdfast.protocol.limits import (
    GRANT_SECONDS,
    GRANT_WAIT_SECONDS,
    GRANT_WAITING_BYTES,
    MAX_GRANT_LOADS,
    MAX_GRANT_WAITING_BYTES,
    MAX_KNOWN_GRANTS,
    MAX_UNKNOWN_GRANTS,
    REVOCATIONS_FRESH_SECONDS,
    REVOCATIONS_SECONDS,
    UNKNOWN_GRANT_SECONDS,
)
from holdfast.protocol.names import SYSTEM_TENANT
from holdfast.protocol.serving.fair_queue import FairQueue, SharedRoom
from holdfast.protocol.subjects import CLUSTER_TENANT

T = TypeVar("T")

_REVOKED = "the token was revoked"


class Claim(NamedTuple):
    """What a request says of its sender: the tenant and the grant in its subject."""

    tenant: str
    #: The id of a token, or empty.
    grant: str
    subject: str


class WaitingRequest(NamedTuple, Generic[T]):
    """A request that waits."""

    claim: Claim
    item: T
    size_bytes: int
    since: float


class Settled(NamedTuple, Generic[T]):
    """A request that waits no longer: it is to be looked at again, or refused with `error`."""

    item: T
    error: HoldfastError | None = None


@dataclass(frozen=True, slots=True)
class ToRead:
    """What to read now, in threads. Each is answered by an event."""

    #: Ids of tokens: `loaded` or `load_failed` follows for each.
    load: list[str] = field(default_factory=list)
    #: Whether to read the revocations: `revocations_read` or `revocations_unread` follows.
    read_revocations: bool = False


class GrantBook(Generic[T]):
    """The grants that a server knows, and the requests that wait for others."""

    def __init__(self) -> None:
        self._known: dict[str, TokenGrant] = {}
        self._rights = KnownRights()
        #: By id: until when it is refused without a look, and why.
        self._unknown: dict[str, tuple[float, str]] = {}
        self._revoked: Collection[str] = ()
        #: Until when the revocations are fresh, and when the reading of them began.
        self._fresh_until = -math.inf
        self._read_at = -math.inf
        self._reading = False
        self._used = False
        self._prune_at = -math.inf
        self._loading: set[str] = set()
        self._to_load: FairQueue[str] = FairQueue(1)
        #: By the id of the grant.
        self._for_load: dict[str, list[WaitingRequest[T]]] = {}
        self._for_revocations: list[WaitingRequest[T]] = []
        self._room = SharedRoom(MAX_GRANT_WAITING_BYTES)

    @property
    def waiting_count(self) -> int:
        """How many requests wait."""
        return len(self._for_revocations) + sum(map(len, self._for_load.values()))

    # A request
    def look(self, claim: Claim, now: float, wall: float) -> TokenGrant | NotAllowedError | None:
        """Return the grant of a request, why it is refused, or None: then it has to `wait`."""
        tenant, grant_id, subject = claim
        if not grant_id:
            return no_token(subject, "this cluster asks for a token")
        self._used = True
        if now >= self._fresh_until:
            return None
        grant = self._known.get(grant_id)
        if grant is not None:
            if wall >= grant.expires_at:
                return no_token(subject, "the token has expired")
            if grant.token.tenant == tenant:
                return grant
            # NATS's wildcard for all tenants also matches the cluster itself, which is none.
            if not grant.token.is_for(tenant) or tenant == CLUSTER_TENANT:
                return no_token(subject, "the token is for another tenant")
            return grant.on_system() if tenant == SYSTEM_TENANT else grant
        if grant_id in self._revoked:
            return no_token(subject, _REVOKED)
        unknown = self._unknown.get(grant_id)
        if unknown is not None and now < unknown[0]:
            return no_token(subject, unknown[1])
        return None

    def wait(self, claim: Claim, item: T, size_bytes: int, now: float) -> BusyError | None:
        """Let a request wait that `look` could not answer. Return the error if there is no room."""
        size_bytes += GRANT_WAITING_BYTES
        if not self._room.has(claim.tenant, size_bytes):
            return BusyError(what="the queue of requests whose token is being read")
        self._room.take(claim.tenant, size_bytes)
        waiting = WaitingRequest(claim, item, size_bytes, now)
        queue = self._for_load.get(claim.grant)
        if queue is None:
            if now >= self._fresh_until:
                self._for_revocations.append(waiting)
                return None
            queue = self._for_load[claim.grant] = []
            if claim.grant not in self._loading:
                self._to_load.push(claim.tenant, claim.grant)
        # Also once the revocations are stale: behind those that wait for the token already.
        queue.append(waiting)
        return None

    # What to do
    def work(self, now: float) -> ToRead:
        """Return what to read now. The caller does it."""
        load: list[str] = []
        while self._to_load and len(self._loading) < MAX_GRANT_LOADS:
            _, ids, _ = self._to_load.begin_turn()
            grant_id = ids.popleft()
            self._to_load.end_turn(1)
            if grant_id in self._for_load:
                load.append(grant_id)
                self._loading.add(grant_id)
        is_due = self._used and now >= self._read_at + REVOCATIONS_SECONDS
        read = not self._reading and (is_due or bool(self._for_revocations))
        if read:
            self._reading, self._used = True, False
        return ToRead(load, read)

    # Events
    def loaded(
        self, grant_id: str, token: Token | None, reason: str, now: float
    ) -> list[Settled[T]]:
        """Take a token that was loaded and verified; without one, `reason` says why."""
        self._loading.discard(grant_id)
        if token is None:
            if len(self._unknown) >= MAX_UNKNOWN_GRANTS:
                del self._unknown[next(iter(self._unknown))]
            self._unknown[grant_id] = now + UNKNOWN_GRANT_SECONDS, reason
        else:
            self._unknown.pop(grant_id, None)
            if grant_id not in self._revoked:
                if len(self._known) >= MAX_KNOWN_GRANTS:
                    del self._known[next(iter(self._known))]
                self._known[grant_id] = TokenGrant(token, self._rights, now)
        return self._settle(self._for_load.pop(grant_id, ()))

    def load_failed(self, grant_id: str, reason: str) -> list[Settled[T]]:
        """Note that a token could not be read, which says nothing about it."""
        self._loading.discard(grant_id)
        error = RegistryUnreadableError(reason=reason)
        return self._settle(self._for_load.pop(grant_id, ()), error)

    def revocations_read(
        self, revoked: Collection[str], began_at: float, now: float
    ) -> list[Settled[T]]:
        """Take the ids of all revoked tokens, read from `began_at` on."""
        self._reading = False
        if revoked is not self._revoked:
            self._revoked = revoked
            for grant_id in [each for each in self._known if each in revoked]:
                del self._known[grant_id]
        if now >= self._prune_at:
            # Also forgets what nobody uses any more.
            self._prune_at = now + GRANT_SECONDS / 8
            for grant in list(self._known.values()):
                if now >= grant.loaded_at + GRANT_SECONDS:
                    del self._known[grant.id]
        self._read_at = max(self._read_at, began_at)
        self._fresh_until = self._read_at + REVOCATIONS_FRESH_SECONDS
        if now >= self._fresh_until:
            # The reading took too long to say anything.
            return []
        waiting, self._for_revocations = self._for_revocations, []
        return self._settle(waiting)

    def revocations_unread(self, reason: str, now: float) -> list[Settled[T]]:
        """Note that the revocations could not be read. Requests are refused once the last reading
        is too old."""
        self._reading = False
        self._used = True
        waiting, self._for_revocations = self._for_revocations, []
        return self._settle(waiting, RegistryUnreadableError(reason=reason))

    def expire(self, now: float) -> list[Settled[T]]:
        """Give up what has waited too long, since a file system may hang."""
        before = now - GRANT_WAIT_SECONDS
        late: list[WaitingRequest[T]] = []
        queues = [self._for_revocations, *self._for_load.values()]
        for queue in queues:
            count = sum(waiting.since <= before for waiting in queue)
            late += queue[:count]
            del queue[:count]
        for grant_id in [each for each, queue in self._for_load.items() if not queue]:
            del self._for_load[grant_id]
        error = RegistryUnreadableError(reason="reading it takes too long")
        return self._settle(late, error)

    def _settle(
        self, waiting: Collection[WaitingRequest[T]], error: HoldfastError | None = None
    ) -> list[Settled[T]]:
        for each in waiting:
            self._room.give_back(each.claim.tenant, each.size_bytes)
        return [Settled(each.item, error) for each in waiting]

    def validate(self) -> None:
        """Check the invariants (in tests, after each event)."""
        every = [*self._for_revocations]
        for queue in self._for_load.values():
            assert queue
            every += queue
        assert self._room.taken == sum(each.size_bytes for each in every)
        assert len(self._known) <= MAX_KNOWN_GRANTS and len(self._unknown) <= MAX_UNKNOWN_GRANTS
        assert len(self._loading) <= MAX_GRANT_LOADS
        assert not self._known.keys() & set(self._revoked)

"""One incarnation of a server as the coordinator sees it, and how its state may change."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from holdfast.protocol.control import Heartbeat, ServerPhase, ServerState
from holdfast.protocol.work.roles import ALL_ROLES, Role, Roles
from holdfast.protocol.work.zones import NOWHERE


class ServerStanding(StrEnum):
    """How an incarnation stands with the coordinator."""

    UNKNOWN = "unknown"
    #: Waits until the incarnation before it is dead.
    JOINING = "joining"
    #: Live, draining or suspect.
    PRESENT = "present"
    #: Its fence is being written: present, and soon dead.
    FENCING = "fencing"
    ENDED = "ended"


class MemberView(NamedTuple):
    """A server at one moment. It takes new stores if it has that role, is live, and was heard on
    this connection."""

    server: str
    incarnation: str
    state: ServerState
    heartbeat_age_seconds: float
    takes_new_stores: bool
    open_stores: int
    log_bytes: int
    operations_per_second: float
    snapshot_backlog: int = 0
    bucket_requests: int = 0
    asks_for_tokens: bool = False
    roles: Roles = ALL_ROLES
    zone: str = NOWHERE
    #: As its last heartbeat told: see `Heartbeat`.
    given_up: int | None = None

    def helps(self, role: Role, zone: str) -> bool:
        """Tell whether it has a role for the servers of a zone."""
        return self.state is ServerState.LIVE and role in self.roles and self.zone == zone


class Doubt(StrEnum):
    """What is under way to find out whether an incarnation lives, or to end it."""

    NONE = "none"
    PROBING = "probing"
    #: It is silent, and so may be whatever uses the storage: this coordinator tests its own.
    WAITING_FOR_STORAGE = "waiting for storage"
    FENCING = "fencing"


class Cause(StrEnum):
    """Why the state of a member changes."""

    RUNS = "runs"
    DRAINS = "drains"
    DOUBTED = "doubted"
    FENCED = "fenced"
    RELEASED = "released"


#: All changes of state that may happen. Any other one is a bug.
MEMBER_TRANSITIONS: Final[dict[tuple[ServerState, Cause], ServerState]] = {
    (ServerState.LIVE, Cause.RUNS): ServerState.LIVE,
    (ServerState.LIVE, Cause.DRAINS): ServerState.DRAINING,
    (ServerState.LIVE, Cause.DOUBTED): ServerState.SUSPECT,
    (ServerState.LIVE, Cause.RELEASED): ServerState.DEAD,
    (ServerState.DRAINING, Cause.RUNS): ServerState.LIVE,
    (ServerState.DRAINING, Cause.DRAINS): ServerState.DRAINING,
    (ServerState.DRAINING, Cause.DOUBTED): ServerState.SUSPECT,
    (ServerState.DRAINING, Cause.RELEASED): ServerState.DEAD,
    (ServerState.SUSPECT, Cause.RUNS): ServerState.LIVE,
    (ServerState.SUSPECT, Cause.DRAINS): ServerState.DRAINING,
    (ServerState.SUSPECT, Cause.DOUBTED): ServerState.SUSPECT,
    (ServerState.SUSPECT, Cause.FENCED): ServerState.DEAD,
    (ServerState.SUSPECT, Cause.RELEASED): ServerState.DEAD,
}


@dataclass(slots=True)
class Member:
    """The newest incarnation of a server."""

    server: str
    incarnation: str
    #: When it was last heard, or since when it counts as silent.
    heartbeat_at: float
    #: True if it was heard on this connection.
    heard: bool
    #: The last heartbeat.
    load: Heartbeat
    state: ServerState = ServerState.LIVE
    doubt: Doubt = Doubt.NONE
    #: Since when.
    doubted_at: float = 0.0
    #: Why it is fenced, or how it ended.
    reason: str = ""
    #: When to write the fence again; None while an attempt runs.
    fence_retry_at: float | None = None
    fence_failures: int = 0
    #: The incarnation that takes this one's place once it is dead, and its roles and zone.
    successor: str | None = None
    successor_roles: Roles = ALL_ROLES
    successor_zone: str = NOWHERE

    @property
    def dead(self) -> bool:
        return self.state is ServerState.DEAD

    @property
    def says_it_leaves(self) -> bool:
        """True if its last heartbeat says that it drains or stops."""
        return self.load.state in (ServerPhase.DRAINING, ServerPhase.STOPPING)

    def move(self, cause: Cause) -> None:
        """Change the state."""
        self.state = MEMBER_TRANSITIONS[self.state, cause]

    def view(self, now: float) -> MemberView:
        """Return it as other parts may see it."""
        return MemberView(
            server=self.server,
            incarnation=self.incarnation,
            state=self.state,
            heartbeat_age_seconds=max(0.0, now - self.heartbeat_at),
            takes_new_stores=self.state is ServerState.LIVE
            and self.heard
            and Role.PERSIST in self.load.roles,
            open_stores=self.load.open_stores,
            log_bytes=self.load.log_bytes,
            operations_per_second=self.load.operations_per_second,
            snapshot_backlog=self.load.snapshot_backlog,
            bucket_requests=self.load.bucket_requests,
            asks_for_tokens=self.load.asks_for_tokens,
            roles=self.load.roles,
            zone=self.load.zone,
            given_up=self.load.given_up,
        )

    def validate(self) -> None:
        """Check the invariants. Raises AssertionError."""
        if self.dead:
            assert self.doubt is Doubt.NONE
        if self.state is ServerState.SUSPECT:
            assert self.doubt is not Doubt.NONE
        if self.doubt is Doubt.FENCING:
            assert self.state is ServerState.SUSPECT
        else:
            assert self.fence_retry_at is None
            assert self.successor is None
        assert self.successor != self.incarnation


def new_member(
    server: str,
    incarnation: str,
    now: float,
    *,
    heard: bool,
    roles: Roles = ALL_ROLES,
    zone: str = NOWHERE,
) -> Member:
    """Return an incarnation that exists, and of which nothing else is known yet."""
    load = Heartbeat(server, incarnation, roles=roles, zone=zone)
    return Member(server, incarnation, now, heard, load)

"""Who lives: the persist servers' incarnations and what is thought of each.

Pure: events and `now` (seconds, monotonic) in, effects out. Kept at every step:

- A server has at most one incarnation that is not dead. A newer one joins once the older is dead.
- An incarnation is dead only after its fence has been written, or after it released everything;
  then it is dead for ever. Until then it keeps what it owns.
- A fence, once begun, is never called off: an attempt that failed may have been written.
- A server that an operator drains is DRAINING in every incarnation, until it is undrained or has
  ended by itself; it is told again as long as it says otherwise.
- Nobody is judged by what could not be heard: ages count from the last (re)connection, and a
  `no responders` is definite only of a server that has been heard on this connection.
- Silence counts only as far as this coordinator has proof that it hears: see `Proof`.
- Nobody is dead for silence alone: a probe that is sent late in it must have failed as well.

What it does not do: assign stores (`assignment.py`), remember (`server_records.py`), speak
(`membership_driver.py`). A lost or late event delays a decision and never makes a wrong one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from holdfast.coordinator.decisions.events import (
    AskToRegister,
    Connected,
    DrainChanged,
    Effect,
    Event,
    FenceFailed,
    FenceWritten,
    HeartbeatArrived,
    OwnMessageArrived,
    Probe,
    ProbeAnswered,
    ProbeFailed,
    RecordDead,
    RecordLive,
    Registered,
    Released,
    Started,
    Suspected,
    TellToDrain,
    TimePassed,
    WriteFence,
)
from holdfast.coordinator.decisions.standby_heartbeats import Proof, StandbyHeartbeats
from holdfast.protocol.control import Heartbeat, ServerPhase, ServerState
from holdfast.protocol.limits import HEARTBEAT_SECONDS, PROBE_TIMEOUT_SECONDS, SILENCE_SECONDS

#: Ended incarnations kept in memory, to stay silent to their heartbeats. An older one is asked to
#: register and then refused by the state file or by its fence, so this is a saving and no safety.
MAX_ENDED_REMEMBERED: Final = 1024
#: A fence that could not be written is tried again after this long, doubling to the maximum.
FENCE_RETRY_SECONDS: Final = 0.25
FENCE_RETRY_MAX_SECONDS: Final = 8.0


#: After so long a silence a server is doubted, and the probe is over when the silence is complete.
DOUBT_SECONDS: Final = SILENCE_SECONDS - PROBE_TIMEOUT_SECONDS
#: What a new coordinator gives a server that it never heard, though it listened for long before: it
#: may have joined at the last moment of the coordinator before. Two heartbeats.
NEWCOMER_SECONDS: Final = 2 * HEARTBEAT_SECONDS


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
    """A server as seen now. `takes_new_stores`: live, and heard on this connection."""

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


class _Doubt(StrEnum):
    NONE = "none"
    PROBING = "probing"
    FENCING = "fencing"


class _Cause(StrEnum):
    RUNS = "runs"
    DRAINS = "drains"
    DOUBTED = "doubted"
    FENCED = "fenced"
    RELEASED = "released"


#: A pair that is missing here is an error of this module.
_TRANSITIONS: Final[dict[tuple[ServerState, _Cause], ServerState]] = {
    (ServerState.LIVE, _Cause.RUNS): ServerState.LIVE,
    (ServerState.LIVE, _Cause.DRAINS): ServerState.DRAINING,
    (ServerState.LIVE, _Cause.DOUBTED): ServerState.SUSPECT,
    (ServerState.LIVE, _Cause.RELEASED): ServerState.DEAD,
    (ServerState.DRAINING, _Cause.RUNS): ServerState.LIVE,
    (ServerState.DRAINING, _Cause.DRAINS): ServerState.DRAINING,
    (ServerState.DRAINING, _Cause.DOUBTED): ServerState.SUSPECT,
    (ServerState.DRAINING, _Cause.RELEASED): ServerState.DEAD,
    (ServerState.SUSPECT, _Cause.RUNS): ServerState.LIVE,
    (ServerState.SUSPECT, _Cause.DRAINS): ServerState.DRAINING,
    (ServerState.SUSPECT, _Cause.DOUBTED): ServerState.SUSPECT,
    (ServerState.SUSPECT, _Cause.FENCED): ServerState.DEAD,
    (ServerState.SUSPECT, _Cause.RELEASED): ServerState.DEAD,
}


@dataclass(slots=True)
class _Member:
    server: str
    incarnation: str
    heartbeat_at: float
    heard: bool
    load: Heartbeat
    state: ServerState = ServerState.LIVE
    doubt: _Doubt = _Doubt.NONE
    reason: str = ""
    #: When to write the fence again; None while an attempt runs.
    fence_retry_at: float | None = None
    fence_failures: int = 0
    #: The incarnation that takes this one's place once it is dead.
    successor: str | None = None

    @property
    def dead(self) -> bool:
        return self.state is ServerState.DEAD

    def move(self, cause: _Cause) -> None:
        self.state = _TRANSITIONS[self.state, cause]


class Membership:
    """The newest incarnation of each server, and the ended ones before it."""

    def __init__(self) -> None:
        self._members: dict[str, _Member] = {}
        self._ended: dict[tuple[str, str], None] = {}
        #: The servers that an operator has drained.
        self._drains: set[str] = set()
        self._hearing = True
        self._proof = Proof(0.0)

    def restore(
        self,
        present: Iterable[tuple[str, str]],
        ended: Iterable[tuple[str, str]],
        hearing: StandbyHeartbeats,
        now: float,
        drains: Iterable[str] = (),
    ) -> None:
        """Take over what an earlier coordinator knew. `ended` is in the order of ending.

        All that were present count as live, so that nothing moves at a restart. Those that were
        heard meanwhile get new work, and are as silent as they have been; one that was not heard
        has been silent since this coordinator began to listen.
        """
        self._proof = hearing.proof
        self._drains.update(drains)
        for server, incarnation in ended:
            member = _new_member(server, incarnation, now, heard=False)
            member.state = ServerState.DEAD
            self._members[server] = member
            self._remember_ended(server, incarnation)
        for server, incarnation in present:
            older = self._members.get(server)
            assert older is None or older.dead
            member = self._new_present(server, incarnation, now, heard=False)
            self._members[server] = member
            heard = hearing.of(server, incarnation)
            if heard is None:
                latest = now - SILENCE_SECONDS + NEWCOMER_SECONDS
                member.heartbeat_at = max(hearing.since, latest)
            else:
                member.load = heard.heartbeat
                self._hear(member, heard.at)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event; return what must be done, in order."""
        match event:
            case HeartbeatArrived(heartbeat):
                return self._heartbeat(heartbeat, now)
            case TimePassed(hearing):
                return self._time_passed(hearing, now)
            case Registered(server, incarnation):
                return self._registered(server, incarnation, now)
            case Suspected(server, incarnation):
                return self._suspected(server, incarnation)
            case ProbeAnswered(server, incarnation, draining):
                return self._probe_answered(server, incarnation, draining, now)
            case ProbeFailed(server, incarnation, no_responders):
                return self._probe_failed(server, incarnation, no_responders, now)
            case FenceWritten(server, incarnation):
                return self._fence_written(server, incarnation, now)
            case FenceFailed(server, incarnation):
                return self._fence_failed(server, incarnation, now)
            case Released(server, incarnation):
                return self._released(server, incarnation, now)
            case DrainChanged(server, draining):
                return self._drain_changed(server, draining)
            case Started():
                return self._doubt_all()
            case Connected(last_number):
                self._proof.restart(now, last_number)
                return self._connected(now)
            case OwnMessageArrived(number, sent_at):
                return self._own_message_arrived(number, sent_at, now)

    def missing_own_messages(self, number: int) -> int:
        """Return how many messages of this coordinator have not come back, of `number` sent."""
        return self._proof.missing(number)

    def standing(self, server: str, incarnation: str) -> ServerStanding:
        """Tell how an incarnation stands."""
        if (server, incarnation) in self._ended:
            return ServerStanding.ENDED
        member = self._members.get(server)
        if member is None:
            return ServerStanding.UNKNOWN
        if member.incarnation == incarnation:
            if member.dead:
                return ServerStanding.ENDED
            is_fenced = member.doubt is _Doubt.FENCING
            return ServerStanding.FENCING if is_fenced else ServerStanding.PRESENT
        return ServerStanding.JOINING if member.successor == incarnation else ServerStanding.UNKNOWN

    def in_doubt(self, server: str, incarnation: str) -> bool:
        """Tell if a probe or a fence of this incarnation is under way."""
        member = self._present(server, incarnation)
        return member is not None and member.doubt is not _Doubt.NONE

    def members(self, now: float) -> list[MemberView]:
        """Return the newest incarnation of each server, by server name."""
        return [
            MemberView(
                server=member.server,
                incarnation=member.incarnation,
                state=member.state,
                heartbeat_age_seconds=max(0.0, now - member.heartbeat_at),
                takes_new_stores=member.state is ServerState.LIVE and member.heard,
                open_stores=member.load.open_stores,
                log_bytes=member.load.log_bytes,
                operations_per_second=member.load.operations_per_second,
                snapshot_backlog=member.load.snapshot_backlog,
                bucket_requests=member.load.bucket_requests,
            )
            for _, member in sorted(self._members.items())
        ]

    def validate(self) -> None:
        """Check the invariants. Raises AssertionError."""
        for server, member in self._members.items():
            assert member.server == server
            assert ((server, member.incarnation) in self._ended) <= member.dead
            if member.dead:
                assert member.doubt is _Doubt.NONE
            if member.state is ServerState.SUSPECT:
                assert member.doubt is not _Doubt.NONE
            if member.doubt is _Doubt.FENCING:
                assert member.state is ServerState.SUSPECT
            else:
                assert member.fence_retry_at is None
                assert member.successor is None
            if member.state is ServerState.LIVE:
                assert server not in self._drains
            assert member.successor != member.incarnation
            assert (server, member.successor) not in self._ended
        assert len(self._ended) <= MAX_ENDED_REMEMBERED

    def _heartbeat(self, heartbeat: Heartbeat, now: float) -> list[Effect]:
        server, incarnation = heartbeat.server, heartbeat.incarnation
        match self.standing(server, incarnation):
            case ServerStanding.UNKNOWN:
                return [AskToRegister(server)]
            case ServerStanding.PRESENT | ServerStanding.FENCING:
                member = self._members[server]
                member.load = heartbeat
                if heartbeat.hangs:
                    # As if it had said nothing: it serves nobody.
                    return []
                self._hear(member, now)
                return self._tell_to_drain(member)
        return []

    def _drain_changed(self, server: str, draining: bool) -> list[Effect]:
        if draining:
            self._drains.add(server)
        else:
            self._drains.discard(server)
        member = self._members.get(server)
        if member is None or member.dead:
            return []
        if member.state is not ServerState.SUSPECT:
            member.move(self._cause_of(member))
        return self._tell_to_drain(member)

    def _tell_to_drain(self, member: _Member) -> list[Effect]:
        """Say what is wanted of a server that does otherwise; one that stops is beyond it."""
        draining = member.server in self._drains
        says = member.load.state
        if (
            member.doubt is _Doubt.FENCING
            or says == ServerPhase.STOPPING
            or (says == ServerPhase.DRAINING) == draining
        ):
            return []
        return [TellToDrain(member.server, member.incarnation, draining)]

    def _registered(self, server: str, incarnation: str, now: float) -> list[Effect]:
        match self.standing(server, incarnation):
            case ServerStanding.PRESENT | ServerStanding.FENCING:
                self._hear(self._members[server], now)
                return []
            case ServerStanding.ENDED | ServerStanding.JOINING:
                return []
        older = self._members.get(server)
        if older is None or older.dead:
            return [self._join(server, incarnation, now)]
        if older.successor is not None:
            return []
        older.successor = incarnation
        if older.doubt is _Doubt.FENCING:
            return []
        return [self._begin_fence(older, f"replaced by incarnation {incarnation}")]

    def _suspected(self, server: str, incarnation: str) -> list[Effect]:
        member = self._present(server, incarnation)
        if member is None or member.doubt is not _Doubt.NONE:
            return []
        member.doubt = _Doubt.PROBING
        return [Probe(server, incarnation)]

    def _probe_answered(
        self, server: str, incarnation: str, draining: bool, now: float
    ) -> list[Effect]:
        member = self._probed(server, incarnation)
        if member is not None:
            member.doubt = _Doubt.NONE
            phase = ServerPhase.DRAINING if draining else ServerPhase.RUNNING
            if not (draining and member.load.state == ServerPhase.STOPPING):
                member.load = member.load._replace(state=phase)
            self._hear(member, now)
        return []

    def _probe_failed(
        self, server: str, incarnation: str, no_responders: bool, now: float
    ) -> list[Effect]:
        member = self._probed(server, incarnation)
        if member is None:
            return []
        if no_responders and member.heard:
            return [self._begin_fence(member, "nobody listens on its subject")]
        if self._hearing and self._silent(member):
            age_seconds = now - member.heartbeat_at
            reason = f"silent for {age_seconds:.1f} s"
            if member.load.hangs:
                reason = f"its event loop has not turned for {member.load.loop_seconds:.1f} s"
            return [self._begin_fence(member, reason)]
        member.doubt = _Doubt.NONE
        member.move(self._cause_of(member))
        return []

    def _fence_written(self, server: str, incarnation: str, now: float) -> list[Effect]:
        member = self._present(server, incarnation)
        if member is None or member.doubt is not _Doubt.FENCING:
            return []
        return self._end(member, _Cause.FENCED, now)

    def _fence_failed(self, server: str, incarnation: str, now: float) -> list[Effect]:
        member = self._present(server, incarnation)
        if member is not None and member.doubt is _Doubt.FENCING:
            delay_seconds = FENCE_RETRY_SECONDS * 2.0 ** min(member.fence_failures, 16)
            member.fence_failures += 1
            member.fence_retry_at = now + min(delay_seconds, FENCE_RETRY_MAX_SECONDS)
        return []

    def _released(self, server: str, incarnation: str, now: float) -> list[Effect]:
        member = self._members.get(server)
        if member is not None and member.successor == incarnation:
            member.successor = None
            self._drains.discard(server)
            self._remember_ended(server, incarnation)
            return [RecordDead(server, incarnation, "released", released=True)]
        member = self._present(server, incarnation)
        if member is None:
            return []
        member.reason = "released"
        # What ends by itself was to end, and what is started next is to work.
        self._drains.discard(server)
        return self._end(member, _Cause.RELEASED, now)

    def _connected(self, now: float) -> list[Effect]:
        self._hearing = True
        for member in self._members.values():
            if not member.dead:
                member.heartbeat_at = now
                member.heard = False
        return self._doubt_all()

    def _doubt_all(self) -> list[Effect]:
        effects: list[Effect] = []
        for member in self._members.values():
            effects.extend(self._suspected(member.server, member.incarnation))
        return effects

    def _time_passed(self, hearing: bool, now: float) -> list[Effect]:
        self._hearing = hearing
        effects: list[Effect] = []
        for member in self._members.values():
            if member.dead:
                continue
            if member.fence_retry_at is not None and member.fence_retry_at <= now:
                member.fence_retry_at = None
                effects.append(WriteFence(member.server, member.incarnation, member.reason))
            elif (
                hearing
                and member.state is not ServerState.SUSPECT
                and self._proof.until - member.heartbeat_at > DOUBT_SECONDS
            ):
                member.move(_Cause.DOUBTED)
                effects.extend(self._suspected(member.server, member.incarnation))
        return effects

    def _hear(self, member: _Member, now: float) -> None:
        member.heartbeat_at = now
        member.heard = True
        if member.doubt is not _Doubt.FENCING:
            member.move(self._cause_of(member))

    def _own_message_arrived(self, number: int, sent_at: float, now: float) -> list[Effect]:
        deaf_seconds = self._proof.arrived(number, sent_at)
        for member in self._members.values():
            if deaf_seconds and not member.dead:
                member.heartbeat_at = min(now, member.heartbeat_at + deaf_seconds)
        return []

    def _silent(self, member: _Member) -> bool:
        return self._proof.until - member.heartbeat_at > SILENCE_SECONDS

    def _begin_fence(self, member: _Member, reason: str) -> WriteFence:
        member.move(_Cause.DOUBTED)
        member.doubt = _Doubt.FENCING
        member.reason = reason
        return WriteFence(member.server, member.incarnation, reason)

    def _end(self, member: _Member, cause: _Cause, now: float) -> list[Effect]:
        successor = member.successor
        member.move(cause)
        member.doubt = _Doubt.NONE
        member.fence_retry_at = None
        member.successor = None
        self._remember_ended(member.server, member.incarnation)
        effects: list[Effect] = [
            RecordDead(
                member.server,
                member.incarnation,
                member.reason,
                released=cause is _Cause.RELEASED,
            )
        ]
        if successor is not None:
            effects.append(self._join(member.server, successor, now))
        return effects

    def _join(self, server: str, incarnation: str, now: float) -> RecordLive:
        self._members[server] = self._new_present(server, incarnation, now, heard=True)
        return RecordLive(server, incarnation)

    def _new_present(self, server: str, incarnation: str, now: float, *, heard: bool) -> _Member:
        member = _new_member(server, incarnation, now, heard=heard)
        member.move(self._cause_of(member))
        return member

    def _cause_of(self, member: _Member) -> _Cause:
        leaving = member.load.state in (ServerPhase.DRAINING, ServerPhase.STOPPING)
        if leaving or member.server in self._drains:
            return _Cause.DRAINS
        return _Cause.RUNS

    def _present(self, server: str, incarnation: str) -> _Member | None:
        member = self._members.get(server)
        if member is None or member.dead or member.incarnation != incarnation:
            return None
        return member

    def _probed(self, server: str, incarnation: str) -> _Member | None:
        member = self._present(server, incarnation)
        return member if member is not None and member.doubt is _Doubt.PROBING else None

    def _remember_ended(self, server: str, incarnation: str) -> None:
        self._ended[server, incarnation] = None
        while len(self._ended) > MAX_ENDED_REMEMBERED:
            del self._ended[next(iter(self._ended))]


def _new_member(server: str, incarnation: str, now: float, *, heard: bool) -> _Member:
    return _Member(server, incarnation, now, heard, Heartbeat(server, incarnation))

"""Which servers live: what the coordinator decides about their incarnations.

Pure: events and `now` (seconds, monotonic) in, effects out (`events.py`). The decisions, in the
order of the handlers below:

- **Joining and leaving.** A newer incarnation of a server joins once the older one is dead. An
  incarnation is dead only after its fence has been written, or after it released everything.
  Until then it keeps what it owns.
- **Hearing.** Ages count from the last (re)connection, because nobody is judged by what could not
  be heard. Silence counts only as far as this coordinator has proof that it hears: see `Proof`.
- **Doubt.** A server is probed when it is silent for long, when a client suspects it, and when this
  coordinator starts or connects. It is fenced at once if its process has ended, or if a NATS that
  is one server says *no responders* of a server that was heard on this connection. Otherwise it is
  fenced only if it was silent, and a probe that was sent late in the silence failed as well.
- **Storage that all share.** Nobody is fenced for silence while the storage hangs for this
  coordinator too (`storage_proof.py`). When it goes on, silent servers get two heartbeats more.
- **Fencing.** A fence that was begun is never called off, because an attempt that failed may have
  been written.
- **Draining.** A server that an operator drains is DRAINING in every incarnation, until it is
  undrained or ends by itself. It is told again as long as it says otherwise.

A lost or late event delays a decision and never makes a wrong one. Others know which incarnations
there are (`roster.py`), assign stores (`assignment.py`), remember (`server_records.py`) and talk to
servers (`membership_driver.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

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
    ServerForgotten,
    Started,
    StorageTested,
    Suspected,
    TellToDrain,
    TestStorage,
    TimePassed,
    WriteFence,
)
from holdfast.coordinator.decisions.member import (
    Cause,
    Doubt,
    Member,
    MemberView,
    ServerStanding,
    new_member,
)
from holdfast.coordinator.decisions.roster import Roster
from holdfast.coordinator.decisions.standby_heartbeats import Proof, StandbyHeartbeats
from holdfast.coordinator.decisions.storage_proof import StorageProof
from holdfast.protocol.control import Heartbeat, ServerPhase, ServerState
from holdfast.protocol.limits import HEARTBEAT_SECONDS, PROBE_TIMEOUT_SECONDS, SILENCE_SECONDS

#: A fence that could not be written is tried again after this long, doubling up to the maximum.
FENCE_RETRY_SECONDS: Final = 0.25
FENCE_RETRY_MAX_SECONDS: Final = 8.0
#: A server that is silent for this long is probed, so that the probe ends when the silence is
#: complete.
DOUBT_SECONDS: Final = SILENCE_SECONDS - PROBE_TIMEOUT_SECONDS
#: How long a new coordinator waits for a server that it never heard, even if it listened for long
#: before: the server may have joined at the last moment of the earlier coordinator. Two heartbeats.
NEWCOMER_SECONDS: Final = 2 * HEARTBEAT_SECONDS


class Membership:
    """Judges the servers of a cluster."""

    def __init__(self) -> None:
        self._roster = Roster()
        #: The servers that an operator has drained.
        self._drains: set[str] = set()
        #: The bus is connected.
        self._hearing = True
        self._proof = Proof(0.0)
        self._storage_proof = StorageProof()

    def restore(
        self,
        present: Iterable[tuple[str, str]],
        ended: Iterable[tuple[str, str]],
        hearing: StandbyHeartbeats,
        now: float,
        drains: Iterable[str] = (),
        forgotten: Collection[str] = (),
    ) -> None:
        """Take over what an earlier coordinator knew. In `ended`, the first to end comes first.

        All that were present count as live, so that no store moves at a restart. Those that were
        heard meanwhile get new stores, and are as silent as they have been. One that was not heard
        has been silent since this coordinator began to listen. Dead servers in `forgotten` are no
        members.
        """
        self._proof = hearing.proof
        self._drains.update(drains)
        for server, incarnation in ended:
            self._roster.remember_ended(server, incarnation)
            if server in forgotten:
                continue
            member = new_member(server, incarnation, now, heard=False)
            member.state = ServerState.DEAD
            self._roster.put(member)
        for server, incarnation in present:
            member = self._new_present(server, incarnation, now, heard=False)
            self._roster.put(member)
            heard = hearing.of(server, incarnation)
            if heard is None:
                latest = now - SILENCE_SECONDS + NEWCOMER_SECONDS
                member.heartbeat_at = max(hearing.since, latest)
            else:
                member.load = heard.heartbeat
                self._hear(member, heard.at)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event, and return what must be done, in order."""
        match event:
            case HeartbeatArrived(heartbeat):
                return self._heartbeat(heartbeat, now)
            case TimePassed(hearing):
                return self._time_passed(hearing, now)
            case Registered():
                return self._registered(event, now)
            case Suspected(server, incarnation):
                return self._suspected(server, incarnation, now)
            case ProbeAnswered(server, incarnation, draining):
                return self._probe_answered(server, incarnation, draining, now)
            case ProbeFailed():
                return self._probe_failed(event, now)
            case StorageTested(began_at):
                return self._storage_tested(began_at, now)
            case FenceWritten(server, incarnation):
                return self._fence_written(server, incarnation, now)
            case FenceFailed(server, incarnation):
                return self._fence_failed(server, incarnation, now)
            case Released(server, incarnation):
                return self._released(server, incarnation, now)
            case DrainChanged(server, draining):
                return self._drain_changed(server, draining)
            case ServerForgotten(server):
                self._drains.discard(server)
                self._roster.forget(server)
                return []
            case Started():
                # It has just opened its state, and begun a term.
                self._storage_proof.ended(now)
                return self._doubt_all(now)
            case Connected(last_number):
                self._proof.restart(now, last_number)
                return self._connected(now)
            case OwnMessageArrived(number, sent_at):
                return self._own_message_arrived(number, sent_at, now)

    def missing_own_messages(self, number: int) -> int:
        """Return how many of the `number` messages that were sent have not come back."""
        return self._proof.missing(number)

    def standing(self, server: str, incarnation: str) -> ServerStanding:
        """Return how an incarnation stands."""
        return self._roster.standing(server, incarnation)

    def in_doubt(self, server: str, incarnation: str) -> bool:
        """Return whether a probe or a fence of this incarnation is under way."""
        member = self._roster.present(server, incarnation)
        return member is not None and member.doubt is not Doubt.NONE

    def members(self, now: float) -> list[MemberView]:
        """Return the newest incarnation of each server, by server name."""
        return self._roster.views(now)

    def validate(self) -> None:
        """Check the invariants. Raises AssertionError."""
        self._roster.validate()
        for member in self._roster:
            if member.state is ServerState.LIVE:
                assert member.server not in self._drains

    # Joining and leaving

    def _registered(self, registered: Registered, now: float) -> list[Effect]:
        server, incarnation, roles, zone = (
            registered.server,
            registered.incarnation,
            registered.roles,
            registered.zone,
        )
        member = self._roster.present(server, incarnation)
        if member is not None:
            member.load = member.load._replace(roles=roles, zone=zone)
            self._hear(member, now)
            return []
        if self.standing(server, incarnation) is not ServerStanding.UNKNOWN:
            return []
        older = self._roster.newest(server)
        if older is None or older.dead:
            return [self._join(registered, now)]
        if older.successor is not None:
            return []
        older.successor = incarnation
        older.successor_roles = roles
        older.successor_zone = zone
        if older.doubt is Doubt.FENCING:
            return []
        return [self._begin_fence(older, f"replaced by incarnation {incarnation}")]

    def _released(self, server: str, incarnation: str, now: float) -> list[Effect]:
        member = self._roster.newest(server)
        if member is not None and member.successor == incarnation:
            member.successor = None
            self._drains.discard(server)
            self._roster.remember_ended(server, incarnation)
            return [RecordDead(server, incarnation, "released", released=True)]
        member = self._roster.present(server, incarnation)
        if member is None:
            return []
        member.reason = "released"
        # A server that ended by itself is done with draining: its next incarnation is to work.
        self._drains.discard(server)
        return self._end(member, Cause.RELEASED, now)

    def _end(self, member: Member, cause: Cause, now: float) -> list[Effect]:
        successor = member.successor
        member.move(cause)
        member.doubt = Doubt.NONE
        member.fence_retry_at = None
        member.successor = None
        self._roster.remember_ended(member.server, member.incarnation)
        effects: list[Effect] = [
            RecordDead(
                member.server,
                member.incarnation,
                member.reason,
                released=cause is Cause.RELEASED,
            )
        ]
        if successor is not None:
            roles, zone = member.successor_roles, member.successor_zone
            effects.append(self._join(Registered(member.server, successor, roles, zone), now))
        return effects

    def _join(self, joins: Registered, now: float) -> RecordLive:
        member = new_member(
            joins.server,
            joins.incarnation,
            now,
            heard=True,
            roles=joins.roles,
            zone=joins.zone,
        )
        member.move(self._cause_of(member))
        self._roster.put(member)
        return RecordLive(joins.server, joins.incarnation)

    def _new_present(
        self, server: str, incarnation: str, now: float, *, heard: bool
    ) -> Member:
        member = new_member(server, incarnation, now, heard=heard)
        member.move(self._cause_of(member))
        return member

    # Hearing

    def _heartbeat(self, heartbeat: Heartbeat, now: float) -> list[Effect]:
        server, incarnation = heartbeat.server, heartbeat.incarnation
        if self.standing(server, incarnation) is ServerStanding.UNKNOWN:
            return [AskToRegister(server)]
        member = self._roster.present(server, incarnation)
        if member is None:
            return []
        member.load = heartbeat
        if heartbeat.hangs:
            # It serves nobody, so this counts as silence.
            return []
        self._hear(member, now)
        return self._tell_to_drain(member)

    def _hear(self, member: Member, now: float) -> None:
        member.heartbeat_at = now
        member.heard = True
        if member.doubt is not Doubt.FENCING:
            member.move(self._cause_of(member))

    def _connected(self, now: float) -> list[Effect]:
        self._hearing = True
        for member in self._roster:
            if not member.dead:
                member.heartbeat_at = now
                member.heard = False
        return self._doubt_all(now)

    def _own_message_arrived(self, number: int, sent_at: float, now: float) -> list[Effect]:
        deaf_seconds = self._proof.arrived(number, sent_at)
        for member in self._roster:
            if deaf_seconds and not member.dead:
                member.heartbeat_at = min(now, member.heartbeat_at + deaf_seconds)
        return []

    def _time_passed(self, hearing: bool, now: float) -> list[Effect]:
        self._hearing = hearing
        effects: list[Effect] = []
        for member in self._roster:
            if member.dead:
                continue
            if member.fence_retry_at is not None and member.fence_retry_at <= now:
                member.fence_retry_at = None
                effects.append(WriteFence(member.server, member.incarnation, member.reason))
            elif (
                hearing
                and member.state is not ServerState.SUSPECT
                and self._silence_seconds(member) > DOUBT_SECONDS
            ):
                member.move(Cause.DOUBTED)
                effects.extend(self._test_storage())
                effects.extend(self._suspected(member.server, member.incarnation, now))
        return effects

    def _silence_seconds(self, member: Member) -> float:
        """Return for how long a member was silent, as far as this coordinator provably heard."""
        return self._proof.until - member.heartbeat_at

    # Doubt

    def _suspected(self, server: str, incarnation: str, now: float) -> list[Effect]:
        member = self._roster.present(server, incarnation)
        if member is None or member.doubt is not Doubt.NONE:
            return []
        member.doubt = Doubt.PROBING
        member.doubted_at = now
        return [Probe(server, incarnation)]

    def _doubt_all(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for member in self._roster:
            effects.extend(self._suspected(member.server, member.incarnation, now))
        return effects

    def _test_storage(self) -> list[Effect]:
        return [TestStorage()] if self._storage_proof.begin() else []

    def _storage_tested(self, began_at: float, now: float) -> list[Effect]:
        self._storage_proof.ended(began_at)
        for member in self._roster:
            if member.doubt is Doubt.WAITING_FOR_STORAGE:
                latest = now - SILENCE_SECONDS + NEWCOMER_SECONDS
                member.heartbeat_at = max(member.heartbeat_at, latest)
                self._trust(member)
        return []

    def _trust(self, member: Member) -> None:
        member.doubt = Doubt.NONE
        member.move(self._cause_of(member))

    def _probe_answered(
        self, server: str, incarnation: str, draining: bool, now: float
    ) -> list[Effect]:
        member = self._probed(server, incarnation)
        if member is not None:
            member.doubt = Doubt.NONE
            phase = ServerPhase.DRAINING if draining else ServerPhase.RUNNING
            if not (draining and member.load.state == ServerPhase.STOPPING):
                member.load = member.load._replace(state=phase)
            self._hear(member, now)
        return []

    def _probe_failed(self, failed: ProbeFailed, now: float) -> list[Effect]:
        member = self._probed(failed.server, failed.incarnation)
        if member is None:
            return []
        if failed.process_ended:
            return [self._begin_fence(member, "its process has ended")]
        if failed.no_responders and member.heard:
            return [self._begin_fence(member, "nobody listens on its subject")]
        if self._hearing and self._silence_seconds(member) > SILENCE_SECONDS:
            if not self._storage_proof.holds_since(member.doubted_at):
                member.move(Cause.DOUBTED)
                member.doubt = Doubt.WAITING_FOR_STORAGE
                return self._test_storage()
            age_seconds = now - member.heartbeat_at
            reason = f"silent for {age_seconds:.1f} s"
            if member.load.hangs:
                reason = f"its event loop has not turned for {member.load.loop_seconds:.1f} s"
            return [self._begin_fence(member, reason)]
        self._trust(member)
        return []

    def _probed(self, server: str, incarnation: str) -> Member | None:
        member = self._roster.present(server, incarnation)
        return member if member is not None and member.doubt is Doubt.PROBING else None

    # Fencing

    def _begin_fence(self, member: Member, reason: str) -> WriteFence:
        member.move(Cause.DOUBTED)
        member.doubt = Doubt.FENCING
        member.reason = reason
        return WriteFence(member.server, member.incarnation, reason)

    def _fence_written(self, server: str, incarnation: str, now: float) -> list[Effect]:
        member = self._roster.present(server, incarnation)
        if member is None or member.doubt is not Doubt.FENCING:
            return []
        return self._end(member, Cause.FENCED, now)

    def _fence_failed(self, server: str, incarnation: str, now: float) -> list[Effect]:
        member = self._roster.present(server, incarnation)
        if member is not None and member.doubt is Doubt.FENCING:
            delay_seconds = FENCE_RETRY_SECONDS * 2.0 ** min(member.fence_failures, 16)
            member.fence_failures += 1
            member.fence_retry_at = now + min(delay_seconds, FENCE_RETRY_MAX_SECONDS)
        return []

    # Draining

    def _drain_changed(self, server: str, draining: bool) -> list[Effect]:
        if draining:
            self._drains.add(server)
        else:
            self._drains.discard(server)
        member = self._roster.newest(server)
        if member is None or member.dead:
            return []
        if member.state is not ServerState.SUSPECT:
            member.move(self._cause_of(member))
        return self._tell_to_drain(member)

    def _tell_to_drain(self, member: Member) -> list[Effect]:
        """Tell a server what it should do, if it does otherwise and is not stopping."""
        draining = member.server in self._drains
        says = member.load.state
        if (
            member.doubt is Doubt.FENCING
            or says == ServerPhase.STOPPING
            or (says == ServerPhase.DRAINING) == draining
        ):
            return []
        return [TellToDrain(member.server, member.incarnation, draining)]

    def _cause_of(self, member: Member) -> Cause:
        if member.says_it_leaves or member.server in self._drains:
            return Cause.DRAINS
        return Cause.RUNS

"""The events that `membership.py` takes, and the effects that it returns.

Events come from the shell, effects go to it. Each names one incarnation, so that a late one is
never mistaken for one of its successor.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.protocol.control import Heartbeat
from holdfast.protocol.work.roles import ALL_ROLES, Roles
from holdfast.protocol.work.zones import NOWHERE


@dataclass(frozen=True, slots=True)
class Registered:
    """An incarnation registers at its start. The shell has checked that its fence is open."""

    server: str
    incarnation: str
    roles: Roles = ALL_ROLES
    zone: str = NOWHERE


@dataclass(frozen=True, slots=True)
class HeartbeatArrived:
    heartbeat: Heartbeat


@dataclass(frozen=True, slots=True)
class Suspected:
    """A client found no responders on the server's subject."""

    server: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class ProbeAnswered:
    server: str
    incarnation: str
    draining: bool = False


@dataclass(frozen=True, slots=True)
class ProbeFailed:
    """The probe was not answered.

    `no_responders`: the one NATS server says that nobody listens. One of a cluster says that too
    while it has lost a route, so there it is no evidence. `process_ended`: nobody listens, and no
    process has the server's lock.
    """

    server: str
    incarnation: str
    no_responders: bool
    process_ended: bool = False


@dataclass(frozen=True, slots=True)
class StorageTested:
    """The test of this coordinator's own storage has ended, well or not; it began at `began_at`."""

    began_at: float


@dataclass(frozen=True, slots=True)
class FenceWritten:
    """The fence is durable."""

    server: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class FenceFailed:
    server: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class Released:
    """The incarnation has released all its stores and is ending."""

    server: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class DrainChanged:
    """An operator drained a server, or ended its drain. This is already recorded."""

    server: str
    draining: bool


@dataclass(frozen=True, slots=True)
class ServerForgotten:
    """An operator wants a dead server off the list. This is already recorded."""

    server: str


@dataclass(frozen=True, slots=True)
class Started:
    """This coordinator is now the active one."""


@dataclass(frozen=True, slots=True)
class Connected:
    """The bus reconnected. `last_number` is the number of the last own message sent before that."""

    last_number: int = 0


@dataclass(frozen=True, slots=True)
class OwnMessageArrived:
    """A message of this coordinator to itself came back.

    If no message between it and the previous one is missing, the coordinator has heard everything
    that arrived before `sent_at`.
    """

    number: int
    sent_at: float


@dataclass(frozen=True, slots=True)
class TimePassed:
    """`hearing` is false while the bus is disconnected: then silence proves nothing."""

    hearing: bool = True


Event = (
    Registered
    | HeartbeatArrived
    | Suspected
    | ProbeAnswered
    | ProbeFailed
    | StorageTested
    | FenceWritten
    | FenceFailed
    | Released
    | DrainChanged
    | ServerForgotten
    | Started
    | Connected
    | OwnMessageArrived
    | TimePassed
)


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask the incarnation for a sign of life. ProbeAnswered or ProbeFailed must follow."""

    server: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class TestStorage:
    """Write something durably where the fences are. StorageTested must follow, when it has ended.
    """

    #: Not a test of pytest's.
    __test__ = False


@dataclass(frozen=True, slots=True)
class WriteFence:
    """Fence the incarnation durably. FenceWritten or FenceFailed must follow."""

    server: str
    incarnation: str
    reason: str


@dataclass(frozen=True, slots=True)
class RecordLive:
    """Record the incarnation before it gets work or an answer."""

    server: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class RecordDead:
    """Record that the incarnation ended. From then on, its stores may go to other servers."""

    server: str
    incarnation: str
    reason: str
    released: bool


@dataclass(frozen=True, slots=True)
class AskToRegister:
    """An unknown incarnation sends heartbeats; ask it to register."""

    server: str


@dataclass(frozen=True, slots=True)
class TellToDrain:
    """Tell an incarnation to release its stores, or to take stores again: its state is not the one
    that the operator wants."""

    server: str
    incarnation: str
    draining: bool


Effect = Probe | TestStorage | WriteFence | RecordLive | RecordDead | AskToRegister | TellToDrain

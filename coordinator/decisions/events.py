"""What happens to the membership, and what it wants done: the vocabulary of `membership.py`.

Events come from the shell, effects go to it. Each names one incarnation, since whatever is late
must not be taken for its successor's.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.protocol.control import Heartbeat


@dataclass(frozen=True, slots=True)
class Registered:
    """An incarnation says that it starts. The shell has checked that its fence is open."""

    server: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class HeartbeatArrived:
    heartbeat: Heartbeat


@dataclass(frozen=True, slots=True)
class Suspected:
    """A client found nobody listening."""

    server: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class ProbeAnswered:
    server: str
    incarnation: str
    draining: bool = False


@dataclass(frozen=True, slots=True)
class ProbeFailed:
    """No answer in time, or (`no_responders`) the definite word that nobody listens."""

    server: str
    incarnation: str
    no_responders: bool


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
    """The incarnation closed everything and ends."""

    server: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class DrainChanged:
    """An operator wants a server drained, or no longer; recorded already."""

    server: str
    draining: bool


@dataclass(frozen=True, slots=True)
class Started:
    """The coordinator is the active one from now on."""


@dataclass(frozen=True, slots=True)
class Connected:
    """The bus was connected again; `last_number` is that of the last own message before."""

    last_number: int = 0


@dataclass(frozen=True, slots=True)
class OwnMessageArrived:
    """A message of this coordinator itself came back: it heard all that arrived before `sent_at`,
    if none is missing between it and the last."""

    number: int
    sent_at: float


@dataclass(frozen=True, slots=True)
class TimePassed:
    """`hearing` is false while the bus is away, when silence says nothing."""

    hearing: bool = True


Event = (
    Registered
    | HeartbeatArrived
    | Suspected
    | ProbeAnswered
    | ProbeFailed
    | FenceWritten
    | FenceFailed
    | Released
    | DrainChanged
    | Started
    | Connected
    | OwnMessageArrived
    | TimePassed
)


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask for a sign of life; ProbeAnswered or ProbeFailed must follow."""

    server: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class WriteFence:
    """Fence the incarnation durably; FenceWritten or FenceFailed must follow."""

    server: str
    incarnation: str
    reason: str


@dataclass(frozen=True, slots=True)
class RecordLive:
    """Remember the incarnation before it gets work or an answer."""

    server: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class RecordDead:
    """Remember that the incarnation ended; its stores may go elsewhere from then on."""

    server: str
    incarnation: str
    reason: str
    released: bool


@dataclass(frozen=True, slots=True)
class AskToRegister:
    """An incarnation that is not known sends heartbeats."""

    server: str


@dataclass(frozen=True, slots=True)
class TellToDrain:
    """An incarnation does not do what the operator wants: release its stores, or take stores."""

    server: str
    incarnation: str
    draining: bool


Effect = Probe | WriteFence | RecordLive | RecordDead | AskToRegister | TellToDrain

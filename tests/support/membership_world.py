"""A membership of servers whose time and hearing a test chooses."""

from __future__ import annotations

from holdfast.coordinator.decisions.events import (
    Effect,
    Event,
    HeartbeatArrived,
    OwnMessageArrived,
    ProbeFailed,
    StorageTested,
    Suspected,
    TestStorage,
    TimePassed,
    WriteFence,
)
from holdfast.coordinator.decisions.membership import Membership
from holdfast.protocol.control import Heartbeat, ServerState


class World:
    """A membership, its clock, and the invariants checked at each step."""

    def __init__(self) -> None:
        self.membership = Membership()
        self.now = 100.0
        #: Its own messages come back, and how many have.
        self.hears = True
        self.sent = 0
        #: Since when its own storage hangs, for a test of it that is under way.
        self.storage_hangs = False
        self.testing_since: float | None = None

    def __call__(self, event: Event, after_seconds: float = 0.0) -> list[Effect]:
        self.now += after_seconds
        self.sent += 1
        if self.hears:
            assert self.membership.handle(OwnMessageArrived(self.sent, self.now), self.now) == []
        effects = self.membership.handle(event, self.now)
        self.membership.validate()
        if TestStorage() in effects:
            effects.remove(TestStorage())
            assert self.testing_since is None
            self.testing_since = self.now
            if not self.storage_hangs:
                self.end_test()
        return effects

    def end_test(self, after_seconds: float = 0.0) -> None:
        """The test of the storage ends, and nobody is fenced by that alone."""
        self.now += after_seconds
        began_at, self.testing_since = self.testing_since, None
        assert began_at is not None
        assert self.membership.handle(StorageTested(began_at), self.now) == []
        self.membership.validate()

    def unanswered(
        self, after_seconds: float = 0.0, *, no_responders: bool = False, server: str = "a"
    ) -> list[Effect]:
        """A probe of the first incarnation fails."""
        return self(ProbeFailed(server, "1", no_responders), after_seconds)

    def passes(self, seconds: float) -> list[Effect]:
        return self(TimePassed(), seconds)

    def beat(self, incarnation: str, state: str = "running") -> list[Effect]:
        return self(HeartbeatArrived(Heartbeat("a", incarnation, state)))

    @property
    def state(self) -> ServerState:
        (member,) = self.membership.members(self.now)
        return member.state

    @property
    def takes_new_stores(self) -> bool:
        return any(member.takes_new_stores for member in self.membership.members(self.now))


def orders_a_fence(effects: list[Effect]) -> bool:
    [order] = effects
    return isinstance(order, WriteFence)


def begin_fence(world: World) -> None:
    """A client suspects the server, and there is nobody who could answer the probe."""
    world(Suspected("a", "1"))
    assert orders_a_fence(world.unanswered(no_responders=True))

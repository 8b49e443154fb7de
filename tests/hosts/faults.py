"""The faults of hosts: which, when and for how long, drawn from a seed. Pure.

One comes at a time, so that what it costs can be told. They come in rounds: a round has every kind
that the file system can have, in a new order.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class HostFault(StrEnum):
    """What is done to a host, or between hosts."""

    KILL = "kill -9 of a persist server"
    COORDINATOR = "kill -9 of the active coordinator"
    NATS_NODE = "kill -9 of a nats-server of three"
    ROUTE = "a route closed once"
    HOST_WITHOUT_NATS = "a host cut from NATS"
    SPLIT = "the NATS cluster split in two"
    LOSS = "packets of a host lost"
    DELAY = "a host's link to NATS delayed"
    CLOCK = "a host's clock set by an hour"
    HOST_WITHOUT_STORAGE = "a host cut from the storage"
    MOUNT_STOPPED = "a mount stopped"
    MOUNT_STOPPED_LONG = "a mount stopped for long"
    STORAGE_STOPPED = "the storage stopped"
    STORAGE_RESTARTED = "the storage's server restarted"

    @property
    def needs_server(self) -> bool:
        """It hits a file system that has a server and mounts."""
        return self in _OF_STORAGE


_OF_STORAGE: Final = frozenset(
    {
        HostFault.HOST_WITHOUT_STORAGE,
        HostFault.MOUNT_STOPPED,
        HostFault.MOUNT_STOPPED_LONG,
        HostFault.STORAGE_STOPPED,
        HostFault.STORAGE_RESTARTED,
    }
)
#: From the shortest to the longest. Cuts and splits outlast the 2.5 s after which the coordinator
#: fences whom it cannot hear.
_SECONDS: Final[dict[HostFault, tuple[float, float]]] = {
    HostFault.HOST_WITHOUT_NATS: (4.0, 8.0),
    HostFault.SPLIT: (4.0, 8.0),
    HostFault.LOSS: (6.0, 10.0),
    HostFault.DELAY: (4.0, 8.0),
    HostFault.HOST_WITHOUT_STORAGE: (10.0, 10.0),
    HostFault.MOUNT_STOPPED: (10.0, 10.0),
    HostFault.MOUNT_STOPPED_LONG: (60.0, 60.0),
    HostFault.STORAGE_STOPPED: (10.0, 10.0),
}
REST_SECONDS: Final = (1.0, 2.0)
#: Of each link of a host, in each direction.
LOSS_RATIO: Final = 0.01
#: Of each packet, in each direction.
_DELAY_SECONDS: Final = (0.02, 0.05)
#: How often the host of the active coordinator is hit.
NEAR_COORDINATOR_RATIO: Final = 0.25


@dataclass(frozen=True, slots=True)
class PlannedHostFault:
    """A fault to come. `pick` in 0..1 chooses among the hosts; it lasts for `seconds`."""

    kind: HostFault
    pick: float
    seconds: float
    rest_seconds: float
    #: Of a split: connections are closed. Otherwise their packets are lost.
    closes: bool = False

    @property
    def delay_seconds(self) -> float:
        """How long packets take that are delayed."""
        shortest, longest = _DELAY_SECONDS
        return shortest + self.pick * (longest - shortest)

    @property
    def seed(self) -> int:
        """Of which packets are lost."""
        return int(self.pick * 2**32)


def plan(seed: int, kinds: Sequence[HostFault]) -> Iterator[PlannedHostFault]:
    """Yield what to do, for ever."""
    assert kinds
    rng = random.Random(seed)
    while True:
        for kind in rng.sample(kinds, len(kinds)):
            yield PlannedHostFault(
                kind,
                rng.random(),
                rng.uniform(*_SECONDS.get(kind, (0.0, 0.0))),
                rng.uniform(*REST_SECONDS),
                rng.random() < 0.5,
            )

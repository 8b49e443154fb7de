"""What peers ask of the coordinator.

The shapes on the wire are in `holdfast.protocol.control`; `parsing.py` makes requests of them.

Every request is safe to send twice, as a peer does that misses an answer, because it names a state
and not a step. Two of them would be steps, and carry what makes them states: a release its epoch,
and a vacation its number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from holdfast.coordinator.decisions.part_book import PartKey
from holdfast.protocol.control import StoreTotals
from holdfast.protocol.errors import (
    HoldfastError,
)
from holdfast.protocol.limits import (
    TENANTS_PAGE_ROWS,
)
from holdfast.protocol.names import StoreId
from holdfast.protocol.work.roles import ALL_ROLES, Roles
from holdfast.protocol.work.zones import NOWHERE

#: How many rows a listing reads for one request, of which it may show none; and what that costs,
#: compared with assigning stores.
LISTING_ROWS: Final = 4096
LISTING_COST_STORES: Final = 1024


@dataclass(frozen=True, slots=True)
class ResolveRequest:
    stores: tuple[StoreId | HoldfastError, ...]
    #: The zone of the client that asks.
    zone: str = NOWHERE


@dataclass(frozen=True, slots=True)
class SuspectRequest:
    server: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class ListServers:
    pass


@dataclass(frozen=True, slots=True)
class ListStores:
    """`kind` None means both. `after` is the last (name, kind) that was seen. `bookmark` is that of
    the answer before, if it had one."""

    tenant: str
    kind: int | None
    prefix: str
    after: tuple[str, int] | None
    limit: int
    bookmark: bytes | None = None
    #: None: the asker may see everything.
    sight: ListingSight | None = None


@dataclass(frozen=True, slots=True)
class ListingSight:
    """What the asker of a listing may see."""

    #: By kind and name.
    shows: Callable[[int, str], bool]
    #: Where its bookmark is, if that is behind `after`.
    begin: tuple[str, int] | None
    #: Returns the bookmark of a place.
    sealed: Callable[[tuple[str, int]], bytes]


@dataclass(frozen=True, slots=True)
class ListStatistics:
    """`after` is the last part that was seen. `tenant` None: the asker may see all gateways."""

    after: PartKey | None
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class TellStatistics:
    """A gateway tells about itself."""

    part: PartKey
    report: bytes


@dataclass(frozen=True, slots=True)
class ListTenants:
    """`after` is the last name that was seen, at first empty."""

    after: str


@dataclass(frozen=True, slots=True)
class ShowTenant:
    """An operator asks what a tenant uses."""

    tenant: str


@dataclass(frozen=True, slots=True)
class Register:
    server: str
    incarnation: str
    roles: Roles = ALL_ROLES
    zone: str = NOWHERE


@dataclass(frozen=True, slots=True)
class Prove:
    """The server wants this number beside its fence, to show that it reads fresh."""

    server: str
    incarnation: str
    number: int


@dataclass(frozen=True, slots=True)
class Seal:
    """The server is about to read the logs of fenced incarnations, and wants them sealed."""

    server: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class OpenStore:
    """`known_epoch` is what the server has found on disk, if that is at or above its grant."""

    store: StoreId
    create: bool
    known_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Open:
    server: str
    incarnation: str
    stores: tuple[OpenStore | HoldfastError, ...]


@dataclass(frozen=True, slots=True)
class Adopt:
    """The server wants stores that nobody owns, for work that no client asked for."""

    server: str
    incarnation: str
    stores: tuple[StoreId, ...]


class HeldClaim(NamedTuple):
    """A piece of cold work that a server has, or had, in an epoch."""

    work: str
    epoch: int


@dataclass(frozen=True, slots=True)
class ClaimWork:
    """The server offers to do cold work, and gives some back."""

    server: str
    incarnation: str
    offers: frozenset[str]
    gives_back: tuple[HeldClaim, ...]


class StoreToTend(NamedTuple):
    """`claim` is that by which the server works on it, if it is not its own."""

    store: StoreId
    claim: HeldClaim | None


@dataclass(frozen=True, slots=True)
class Tend:
    """The server asks which of these stores are its own, and which have no owner."""

    server: str
    incarnation: str
    stores: tuple[StoreToTend, ...]


class CreatedStore(NamedTuple):
    """Its file is durable at `revision`. None says nothing about a store that is cold."""

    store: StoreId
    revision: int | None = None
    totals: StoreTotals | None = None


@dataclass(frozen=True, slots=True)
class Created:
    server: str
    incarnation: str
    stores: tuple[CreatedStore, ...]


class ClosedStore(NamedTuple):
    store: StoreId
    epoch: int
    revision: int
    #: None if an older server closed it.
    totals: StoreTotals | None = None


@dataclass(frozen=True, slots=True)
class Closed:
    """The files of these stores are durable and were closed, each at a revision and size."""

    server: str
    incarnation: str
    stores: tuple[ClosedStore, ...]


class ColdStore(NamedTuple):
    """`claim` is that by which the server works on it, if it is not its own."""

    store: StoreId
    epoch: int
    revision: int
    claim: HeldClaim | None = None


@dataclass(frozen=True, slots=True)
class Cool:
    """Verified snapshots in the bucket hold all of these stores."""

    server: str
    incarnation: str
    stores: tuple[ColdStore, ...]


@dataclass(frozen=True, slots=True)
class DeletedRequest:
    """The incarnation has deleted these stores: whatever is left of them is void."""

    server: str
    incarnation: str
    stores: tuple[ReleasedStore, ...]


class ReleasedStore(NamedTuple):
    """With an epoch, it is released only if that is still its epoch, so a late retry changes
    nothing. `nothing`: it has no file and no record in a log. `revision` and `totals`:
    those of the closed, durable file."""

    store: StoreId
    epoch: int | None = None
    nothing: bool = False
    revision: int | None = None
    totals: StoreTotals | None = None


@dataclass(frozen=True, slots=True)
class ReleaseRequest:
    """`to` is the server that is to own the stores from now on; empty if none is named."""

    server: str
    incarnation: str
    stores: tuple[ReleasedStore, ...]
    to: str = ""


@dataclass(frozen=True, slots=True)
class ReleaseAll:
    server: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class Vacate:
    """All stores of the incarnation are released, and it lives on. Each `number` counts once."""

    server: str
    incarnation: str
    number: int


class OpenStoreTotals(NamedTuple):
    store: StoreId
    epoch: int
    totals: StoreTotals


class AskedRate(NamedTuple):
    """What clients of a tenant asked of the server, a second."""

    tenant: str
    operations: float
    bytes: float
    #: What the server holds of it, which older servers do not tell.
    open_stores: int = 0
    uploads: int = 0


@dataclass(frozen=True, slots=True)
class UsageRequest:
    """What open stores take, and what their tenants ask for, where they have quotas."""

    server: str
    incarnation: str
    stores: tuple[OpenStoreTotals, ...]
    rates: tuple[AskedRate, ...]


@dataclass(frozen=True, slots=True)
class ListHelpers:
    """A server asks who keeps blocks of snapshots, and who reads the archive, in its zone."""

    zone: str


@dataclass(frozen=True, slots=True)
class Identify:
    """A coordinator that starts asks for the id of the cluster, which every answer has."""


@dataclass(frozen=True, slots=True)
class Drain:
    """An operator drains a server, or ends that."""

    server: str
    draining: bool
    #: The user of the operating system, as the command says.
    by: str = ""


@dataclass(frozen=True, slots=True)
class Forget:
    """An operator wants a dead server off the list. With `reassign`, also if stores are recorded as
    its own; they belong to nobody then."""

    server: str
    reassign: bool
    #: The user of the operating system, as the command says.
    by: str = ""


@dataclass(frozen=True, slots=True)
class MoveStore:
    """An operator wants a server to own a store."""

    store: StoreId
    server: str
    #: The user of the operating system, as the command says.
    by: str = ""


@dataclass(frozen=True, slots=True)
class RebalanceRequest:
    """An operator asks which moves would even the loads out. Unless `dry_run`, they are to be
    made."""

    dry_run: bool
    #: The user of the operating system, as the command says.
    by: str = ""


Request = (
    ResolveRequest
    | SuspectRequest
    | ListServers
    | ListStores
    | ListStatistics
    | TellStatistics
    | ListTenants
    | ShowTenant
    | Drain
    | Forget
    | MoveStore
    | RebalanceRequest
    | Register
    | Prove
    | Seal
    | Open
    | Adopt
    | ClaimWork
    | Tend
    | Created
    | Closed
    | Cool
    | DeletedRequest
    | ReleaseRequest
    | ReleaseAll
    | Vacate
    | UsageRequest
    | ListHelpers
    | Identify
)


def store_count(request: Request) -> int:
    """Return how many stores a request concerns, which is its cost."""
    match request:
        case ResolveRequest(stores=stores):
            return len(stores)
        case Open(stores=opened):
            return len(opened)
        case Created(stores=created):
            return len(created)
        case Adopt(stores=named):
            return len(named)
        case Tend(stores=tended):
            return len(tended)
        case Closed(stores=closed):
            return len(closed)
        case Cool(stores=cooled):
            return len(cooled)
        case ReleaseRequest(stores=released) | DeletedRequest(stores=released):
            return len(released)
        case UsageRequest(stores=stores_told, rates=rates):
            return len(stores_told) + len(rates)
        case ListStores(limit=limit, sight=sight):
            # Who may not see everything may have many rows read for one.
            return limit if sight is None else LISTING_COST_STORES
        case ListTenants():
            return TENANTS_PAGE_ROWS
        case _:
            return 1

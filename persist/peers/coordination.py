"""The conversation between a server and the coordinator, from the server's side.

The server asks to be registered, and to open and release stores. `commands.py` handles what the
coordinator commands. Invariants:

- The server obeys no coordinator whose term is lower than the highest it has heard. A command of a
  deposed coordinator is refused, and its answer is ignored.
- Callers repeat a question until they get an answer. Each question is harmless when
  it arrives twice.

This module decides nothing: `draining.py`, for example, decides what a drain does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.peers.early_grants import EarlyGrants
from holdfast.protocol import frames
from holdfast.protocol.control import Grant, Heartbeat, StoreTotals
from holdfast.protocol.errors import (
    DeposedError,
    FencedError,
    NoCoordinatorError,
    OtherClusterError,
    ProtocolError,
    StorageError,
    UnavailableError,
    UnknownOperationError,
    error_from_wire,
)
from holdfast.protocol.limits import CONTROL_TIMEOUT_SECONDS, MAX_TERM
from holdfast.protocol.names import StoreId
from holdfast.protocol.serving.trouble import Trouble
from holdfast.protocol.work.roles import ALL_ROLES, roles_text
from holdfast.shared_fs.disk.proof import NO_NUMBER, ProofNumber

logger = logging.getLogger("holdfast.persist")

_RETRY_SECONDS: Final = 0.1
#: For stores that this server has not given back.
NO_EPOCHS: Final[Mapping[StoreId, int]] = MappingProxyType({})
#: For requests without closed files.
NOTHING_KNOWN: Final[Mapping[StoreId, tuple[int, StoreTotals]]] = MappingProxyType({})
#: How often a server whose tree has no cluster id yet looks again before it concludes that the
#: coordinator belongs to another cluster.
_LATE_TRIES: Final = 20

_Answer = TypeVar("_Answer")


class Helpers(NamedTuple):
    """The servers of a zone that do something for others."""

    #: Those that keep blocks of snapshots.
    caches: tuple[str, ...] = ()
    #: Which one has claimed each part of the archived history, and in which epoch.
    archive: Mapping[str, tuple[str, int]] = MappingProxyType({})


class Coordination:
    """The coordinator as one incarnation of a server sees it."""

    def __init__(
        self,
        life: Incarnation,
        read_cluster: Callable[[], str] = lambda: "",
        told_time: Callable[[int], None] = lambda time_ms: None,
        claim_bucket: Callable[[str], None] = lambda cluster: None,
    ) -> None:
        """`read_cluster` returns the id of this server's cluster, or an empty text if it has
        none yet. Before any store can be opened, `told_time` is called with the coordinator's time,
        in milliseconds, and `claim_bucket` with the id; it raises if the bucket belongs to another
        cluster."""
        self._run_in_thread = life.run_in_thread
        self._bus = life.bus
        self._subjects = life.subjects
        self._server = life.server
        self._incarnation = life.id
        self._gate = life.gate
        self._roles = life.roles
        self._zone = life.zone
        self._read_cluster = read_cluster
        self._told_time = told_time
        self._claim_bucket = claim_bucket
        self._has_claimed = False
        #: The id of this server's cluster, once it is known.
        self.cluster = ""
        self._register_again = asyncio.Event()
        self._waiting = Trouble(logger, "server.waiting")
        #: Changes when a coordinator records that an incarnation has ended: its term and a count,
        #: as told with the last grants. None if it does not tell, as one of an earlier version.
        self.ended: tuple[int, int] | None = None
        #: The highest term heard.
        self.term = 0
        #: True once the coordinator has accepted this incarnation, which then may own stores.
        self.registered = False
        #: Grants that were told before they were asked for.
        self.early_grants = EarlyGrants(_loop_time)

    def recognise(self, found: str | None) -> None:
        """Raise OtherClusterError if a coordinator belongs to another cluster."""
        if not found or found == self.cluster:
            return
        if not self.cluster:
            # The first coordinator writes the id before it says anything.
            self.cluster = self._read_cluster()
        if found != self.cluster:
            who = f"the coordinator on prefix {self._subjects.prefix!r}"
            expected = f"that of server {self._server}, {self.cluster or 'which is new'}"
            raise OtherClusterError(who=who, found=found, expected=expected)

    def hear(self, fields: Any) -> None:
        """Note a coordinator's term. Raises DeposedError if the term is lower than
        one heard before."""
        term = fields.get("term")
        if type(term) is not int or not 0 <= term < MAX_TERM:
            # A server that accepted an unbounded term might never obey a coordinator again.
            return
        if term < self.term:
            raise DeposedError(term=term, newer_term=self.term)
        self.term = term

    async def begin(self) -> None:
        """Read the id of this server's cluster, before it registers. Raises
        OtherClustersBucketError."""
        self.cluster = await self._run_in_thread(self._read_cluster)
        await self._claim()

    def register_again(self) -> None:
        """Register again: the coordinator does not know this incarnation."""
        self._register_again.set()

    # What the server says
    async def beat(self, heartbeat: Heartbeat, report: bytes | None = None) -> None:
        """Publish a heartbeat, perhaps with what the server counts."""
        await self._bus.publish(self._subjects.heartbeat(), encode_heartbeat(heartbeat, report))

    async def register(self, give_up: Callable[[], bool]) -> None:
        """Return once this incarnation is registered, or `give_up` returns True. Raises
        FencedError, OtherClusterError, OtherClustersBucketError."""
        roles = self._roles
        answer = await self.patiently(
            lambda: self._ask("register", roles=roles, zone=self._zone), give_up
        )
        if answer is None:
            return
        if self._roles != ALL_ROLES and "roles" not in answer:
            # It will name this server to clients, which ask in vain.
            logger.error(
                "server.roles_ignored server=%s roles=%s reason=the coordinator is of an earlier "
                "version: upgrade it",
                self._server,
                roles_text(roles),
            )
        # The coordinator of a new cluster has made the id meanwhile.
        await self._claim()
        time_ms = answer.get("time")
        if type(time_ms) is int:
            self._told_time(time_ms)
        self.registered = True

    async def _claim(self) -> None:
        if self.cluster and not self._has_claimed:
            await self._run_in_thread(lambda: self._claim_bucket(self.cluster))
            self._has_claimed = True

    async def prove(self, number: int) -> ProofNumber:
        """Have the coordinator write a number beside this incarnation's fence; return what is
        durable there. It is NO_NUMBER if the coordinator writes none: an older one, or one without
        a shared file system.

        Raises UnavailableError, StorageError, OtherClusterError.
        """
        try:
            answer = await self._ask("prove", number=number)
        except UnknownOperationError:
            return NO_NUMBER
        said = ProofNumber(answer.get("term"), answer.get("number"))
        return said if all(type(each) is int for each in said) else NO_NUMBER

    async def seal(self) -> frozenset[tuple[str, str]] | None:
        """Have the coordinator seal the logs of all fenced incarnations (`seal.py`). Return those
        that have one, or None if the coordinator seals none: an older one, or one without a shared
        file system.

        Raises UnavailableError, StorageError, OtherClusterError.
        """
        try:
            logs = (await self._ask("seal")).get("logs")
        except UnknownOperationError:
            return None
        return None if logs is None else frozenset((log[0], log[1]) for log in logs)

    async def patiently(
        self, ask: Callable[[], Awaitable[_Answer]], give_up: Callable[[], bool]
    ) -> _Answer | None:
        """Ask the coordinator until it answers; return the answer, or None once `give_up` returns
        True. For what a server asks before it serves. Raises OtherClusterError, and what `ask`
        raises but UnavailableError."""
        late_tries = _LATE_TRIES
        while not give_up():
            try:
                answer = await ask()
            except OtherClusterError:
                # A cache may hide another host's file from this one for a while.
                if self.cluster or not late_tries:
                    raise
                late_tries -= 1
                await asyncio.sleep(_RETRY_SECONDS)
            except UnavailableError as error:
                self._waiting.note("server=%s reason=%s", self._server, error)
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                self._waiting.over()
                return answer
        return None

    async def keep_registered(self, give_up: Callable[[], bool]) -> None:
        """Register again, whenever the coordinator asks for it, until cancelled."""
        while True:
            await self._register_again.wait()
            self._register_again.clear()
            await self.register(give_up)

    async def open(
        self, wanted: Sequence[tuple[StoreId, bool]], above: Mapping[StoreId, int] = NO_EPOCHS
    ) -> list[list[Any]]:
        """Ask for stores `(store, create)`; those in `above` need a higher epoch than there. Return
        for each `[epoch, state, state_before]` or `[None, code, fields]`. Raises
        NoCoordinatorError, FencedError."""
        stores = [[*store, create, above.get(store)] for store, create in wanted]
        answer = await self._ask("open", stores=stores)
        ended = answer.get("ended")
        self.ended = (answer["term"], ended) if type(ended) is int else None
        grants: list[list[Any]] = answer["grants"]
        return grants

    def open_early(self, store: StoreId) -> Grant | None:
        """Return the grant of a store that the coordinator told without being asked, or None if
        this server must ask. Raises FencedError."""
        early = self.early_grants.take(store)
        if early is None:
            return None
        try:
            # The coordinator would tell a fenced incarnation that asked.
            self._gate.check()
        except FencedError:
            raise
        except StorageError:
            return None
        if self.ended is None or self.ended < (early.term, early.ended):
            # Who owned the store before had ended by then.
            self.ended = (early.term, early.ended)
        return early.grant

    async def raise_epoch(self, store: StoreId, known_epoch: int) -> int:
        """Report an epoch that was found on disk, and return a higher one for this server.

        Raises NotOwnerError, NoCoordinatorError, FencedError, ProtocolError.
        """
        answer = await self._ask("open", stores=[[*store, False, known_epoch]])
        grant = answer["grants"][0]
        if grant[0] is None:
            raise error_from_wire(grant[1], grant[2])
        epoch: int = grant[0]
        if epoch <= known_epoch:
            raise ProtocolError(
                reason=f"the coordinator granted epoch {epoch} after {known_epoch}"
            )
        return epoch

    async def adopt(self, stores: Sequence[StoreId]) -> list[list[Any]]:
        """Ask for stores that have no owner any more. Returns the same as `open`.

        Raises NoCoordinatorError, FencedError.
        """
        answer = await self._ask("adopt", stores=[list(store) for store in stores])
        grants: list[list[Any]] = answer["grants"]
        return grants

    async def claim(
        self, offers: Sequence[str], gives_back: Sequence[tuple[str, int]]
    ) -> tuple[dict[str, int], list[str]]:
        """Offer to do cold work, and give back `(work, epoch)` pairs. Return what this incarnation
        has from now on, with epochs, and what of it others want.

        Raises NoCoordinatorError, FencedError, and UnknownOperationError with an older coordinator.
        """
        given = [list(each) for each in gives_back]
        answer = await self._ask("claim", offers=list(offers), gives_back=given)
        return dict(answer["claims"]), answer["wanted"]

    async def tend(
        self, stores: Sequence[tuple[StoreId, tuple[str, int] | None]]
    ) -> list[list[Any] | None]:
        """Ask which stores are this server's, and which have no owner and belong to a work that it
        has in an epoch. Return for each `[epoch, owned]`, or None.

        Raises NoCoordinatorError, FencedError.
        """
        named = [[*store, *(claim or ())] for store, claim in stores]
        answer = await self._ask("tend", stores=named)
        found: list[list[Any] | None] = answer["stores"]
        return found

    async def helpers(self) -> Helpers:
        """Return the servers of this server's zone that do something for others; none with an older
        coordinator.

        Raises NoCoordinatorError, FencedError.
        """
        try:
            answer = await self._ask("caches", zone=self._zone)
        except UnknownOperationError:
            return Helpers()
        # A coordinator from before parts of the archive were claimed names none.
        parts = {work: (str(server), epoch) for work, server, epoch in answer.get("parts") or ()}
        return Helpers(tuple(map(str, answer["caches"])), parts)

    async def created(self, stores: Sequence[tuple[StoreId, int, StoreTotals | None]]) -> None:
        """Report that the files of these stores are durable: `(store, revision, totals)`, None for
        unknown ones.

        Raises NoCoordinatorError, FencedError.
        """
        rows = [[*store, revision, *(totals or ())] for store, revision, totals in stores]
        await self._ask("created", stores=rows)

    async def closed(self, stores: Sequence[tuple[StoreId, int, int, StoreTotals]]) -> None:
        """Report durable files that were closed: `(store, epoch, revision, totals)`. The
        report may be late.

        Raises NoCoordinatorError, FencedError.
        """
        rows = [[*store, epoch, revision, *totals] for store, epoch, revision, totals in stores]
        await self._ask("closed", stores=rows)

    async def usage(
        self,
        stores: Sequence[tuple[StoreId, int, StoreTotals]],
        rates: Sequence[tuple[str, float, float, int, int]],
    ) -> tuple[Any, Any]:
        """Report what open stores hold, `(store, epoch, totals)`, and of tenants with quotas what
        they asked for and what is held of them: `(tenant, operations, bytes, open stores,
        uploads)`, the first two a second. Return what each of these tenants has used, with this
        server's shares of its rates, and what others hold of it: `{tenant: [bytes, share, byte
        share]}` and `{tenant: [open stores, uploads]}`, empty with an older coordinator.

        Raises NoCoordinatorError, FencedError, and UnknownOperationError with an older coordinator.
        """
        answer = await self._ask(
            "usage",
            stores=[[*store, epoch, *totals] for store, epoch, totals in stores],
            tenants=[list(rate) for rate in rates],
        )
        return answer.get("tenants"), answer.get("elsewhere", {})

    async def cold(
        self, stores: Sequence[tuple[StoreId, int, int, tuple[str, int] | None]]
    ) -> list[bool]:
        """Report that the bucket has all of `(store, epoch, revision, claim)`: the claim by which
        this server works on it, if it is not its own. Return for each if that is recorded, so that
        its file may be removed. Raises NoCoordinatorError, FencedError."""
        named = [[*store, *at, *(claim or ())] for store, *at, claim in stores]
        answer = await self._give_up("cold", stores=named)
        recorded: list[bool] = answer["cold"]
        return recorded

    async def release(
        self,
        stores: Sequence[tuple[StoreId, int]],
        *,
        nothing: bool = False,
        ends: Mapping[StoreId, tuple[int, StoreTotals]] = NOTHING_KNOWN,
        to: str = "",
    ) -> None:
        """Give up `(store, epoch)` pairs, none of them open. With `nothing`, none of them
        exists. `ends` tells at which revision their files were closed, durable, and what they hold.
        `to` is the server that is to own them. Raises NoCoordinatorError."""
        released = [
            [*store, epoch, nothing, end[0], *end[1]]
            if (end := ends.get(store)) is not None
            else [*store, epoch, *([True] if nothing else [])]
            for store, epoch in stores
        ]
        await self._give_up("release", stores=released, **({"to": to} if to else {}))

    async def deleted(self, store: StoreId, epoch: int) -> bool:
        """Report that a store is deleted. Return whether that is recorded. Raises
        NoCoordinatorError, FencedError."""
        answer = await self._give_up("deleted", stores=[[*store, epoch]])
        return bool(answer.get("deleted") == [True])

    async def release_all(self) -> None:
        """Give up everything: this incarnation ends. Raises NoCoordinatorError."""
        await self._give_up("release", stores=None)

    async def vacate(self, number: int) -> None:
        """Give up everything while nothing is open, and live on. Raises NoCoordinatorError."""
        await self._give_up("vacate", number=number)

    async def _give_up(self, verb: str, **fields: object) -> Any:
        """Ask for something that ends an assignment, or changes what a grant would say."""
        with self.early_grants.giving_up():
            return await self._ask(verb, **fields)

    async def _ask(self, verb: str, **fields: object) -> Any:
        """Ask the coordinator. Raises NoCoordinatorError, or the error it answers with."""
        payload = frames.encode_control(
            server=self._server,
            incarnation=self._incarnation,
            cluster=self.cluster,
            **fields,
        )
        try:
            answer = await self._bus.request(
                self._subjects.cluster(verb), payload, CONTROL_TIMEOUT_SECONDS
            )
        except UnavailableError as error:
            raise NoCoordinatorError(prefix=self._subjects.prefix) from error
        self.recognise(frames.cluster_of(answer))
        decoded = frames.decode_control(answer)
        self.hear(decoded)
        return decoded


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


def encode_heartbeat(heartbeat: Heartbeat, report: bytes | None = None) -> bytes:
    """Return a heartbeat as it is sent."""
    more = {} if report is None else {"report": report}
    return frames.encode_control(**heartbeat._asdict(), **more)

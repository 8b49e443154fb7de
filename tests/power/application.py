"""An application that knows what it was promised: it numbers its writes as a client does.

One writer, one group after the other for each store, so what a store must hold after each group is
known beforehand (`Model`). Nothing is ever given up: a group without an answer is sent again with
the same number until it has one, and an answered one may be sent again to see that the answer
stays."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.protocol import frames
from holdfast.protocol.bus.bus import BusMessage, BusTimeoutError, NoRespondersError
from holdfast.protocol.bus.bus_memory import MemoryNetwork
from holdfast.protocol.errors import HoldfastError, NotOwnerError, error_from_wire
from holdfast.protocol.messages import Durability
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.protocol.subjects import Subjects

TENANT: Final = "acme"
_SUBJECTS: Final = Subjects()
_WRITER: Final = b"the-writer"
_ANSWER_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 0.05

Operations = list[list[Any]]


def stream(name: str) -> StoreId:
    return StoreId(TENANT, StoreKind.STREAM, name)


def kv(name: str) -> StoreId:
    return StoreId(TENANT, StoreKind.KV, name)


class Violation(Exception):
    """A promise was broken; the text says which."""


@dataclass(slots=True)
class Model:
    """What a store holds: seq or key to `(value, revision)`."""

    revision: int = 0
    last_seq: int = 0
    rows: dict[Any, tuple[bytes, int]] = field(default_factory=dict)

    def apply(self, operations: Operations) -> list[list[int]]:
        """Do what the operations do, and return what they must be answered."""
        return [self._apply(operation) for operation in operations]

    def _apply(self, operation: list[Any]) -> list[int]:
        number = operation[0]
        if number == frames.APPEND:
            self.last_seq += 1
            self.revision += 1
            self.rows[self.last_seq] = (operation[1], self.revision)
            return [self.last_seq, self.revision]
        if number == frames.SET_ENTRY:
            self.revision += 1
            self.rows[operation[1]] = (operation[2], self.revision)
            return [0, self.revision]
        if number == frames.DELETE_MESSAGES or number == frames.DELETE_ENTRIES:
            gone = [key for key in operation[1] if key in self.rows]
        else:
            assert number == frames.TRIM, number
            gone = [seq for seq in self.rows if seq <= operation[1]]
        for key in gone:
            del self.rows[key]
        if gone:
            self.revision += 1
        return [len(gone), self.revision]


@dataclass(slots=True)
class Sent:
    """A write group: what was asked, and the answer as bytes once it is there."""

    store: StoreId
    counter: int
    operations: Operations
    durability: Durability = Durability.DEFAULT
    answer: bytes | None = None


class Application:
    """The writer of all stores, and their reader."""

    def __init__(self, network: MemoryNetwork) -> None:
        self._bus = network.connect("application")
        self.sent: dict[StoreId, list[Sent]] = {}

    # Writing
    async def write(
        self, *writes: tuple[StoreId, Operations], durability: Durability = Durability.DEFAULT
    ) -> None:
        """Send one frame with a group for each store; return when all are answered."""
        groups = []
        for store, operations in writes:
            earlier = self.sent.setdefault(store, [])
            earlier.append(Sent(store, len(earlier) + 1, operations, durability))
            groups.append(earlier[-1])
        await self._deliver(groups)

    async def append(self, store: StoreId, *values: bytes) -> None:
        await self.write((store, [[frames.APPEND, value] for value in values]))

    async def read(self, store: StoreId) -> Model:
        """Return what the store's owner says that it holds."""
        if store.kind == StoreKind.STREAM:
            question = [frames.GET_MESSAGES, 1]
        else:
            question = [frames.GET_ENTRIES, "", None, None, True]
        group = [store.kind, store.name, 0, 0, 0, [[frames.HEAD], question]]
        answer = (await self._ask([store], [group]))[0]
        head, page = frames.decode_outcome(answer).results
        assert page[1] is None, "the scenarios' stores fit in one page"
        if head[3] != len(page[0]):
            raise Violation(f"{store}: its head counts {head[3]}, and there are {len(page[0])}")
        return Model(head[0], head[2], {row[0]: (row[3], row[1]) for row in page[0]})

    # Judging
    def model(self, store: StoreId, group_count: int) -> Model:
        """Return what the store holds after its first groups."""
        model = Model()
        for group in self.sent.get(store, [])[:group_count]:
            model.apply(group.operations)
        return model

    async def check_nothing_is_lost(self) -> None:
        """Read every store: it holds its first groups, all that were answered among them."""
        for store, groups in self.sent.items():
            answered = [group.counter for group in groups if group.answer is not None]
            found = await self.read(store)
            least = max(answered, default=0)
            if all(found != self.model(store, count) for count in range(least, len(groups) + 1)):
                raise Violation(
                    f"{store} holds {found}; {least} of {len(groups)} groups were acknowledged: "
                    f"{self.model(store, least)}"
                )

    async def check_retries(self) -> None:
        """Send every group again, in order: each is answered as the first time, or applied once."""
        for store, groups in self.sent.items():
            model = Model()
            for group in groups:
                first = group.answer
                group.answer = None
                await self._deliver([group])
                if first is not None and group.answer != first:
                    raise Violation(
                        f"{store}: group {group.counter} was answered {_text(first)}, and its "
                        f"retry {_text(group.answer)}"
                    )
                expected = model.apply(group.operations)
                if _results(group.answer) != expected:
                    raise Violation(
                        f"{store}: group {group.counter} was answered {_text(group.answer)} "
                        f"instead of {expected}"
                    )
            self.check_equal(store, await self.read(store))

    def check_equal(self, store: StoreId, found: Model) -> None:
        """Raise Violation unless `found` is what all groups make of the store."""
        expected = self.model(store, len(self.sent[store]))
        if found != expected:
            raise Violation(f"{store} holds {found} instead of {expected}")

    # The wire
    async def _deliver(self, groups: list[Sent]) -> None:
        wire = [
            [
                group.store.kind,
                group.store.name,
                group.counter,
                1,
                group.durability,
                group.operations,
            ]
            for group in groups
        ]
        answers = await self._ask([group.store for group in groups], wire)
        for group, answer in zip(groups, answers, strict=True):
            group.answer = answer

    async def _ask(self, stores: list[StoreId], wire: list[list[Any]]) -> list[bytes]:
        """Return the outcomes of groups, asked of the stores' owners again and again."""
        answers: dict[int, bytes] = {}
        while len(answers) < len(wire):
            try:
                owners = await self.owners_of(stores)
            except HoldfastError as error:
                _require_retryable(error)
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            for owner in dict.fromkeys(owners):
                indexes = [
                    index
                    for index, each in enumerate(owners)
                    if each == owner and index not in answers
                ]
                if indexes:
                    await self._ask_owner(owner, indexes, wire, answers)
            if len(answers) < len(wire):
                await asyncio.sleep(_PAUSE_SECONDS)
        return [answers[index] for index in range(len(wire))]

    async def _ask_owner(
        self,
        owner: tuple[str, str],
        indexes: list[int],
        wire: list[list[Any]],
        answers: dict[int, bytes],
    ) -> None:
        replies: asyncio.Queue[BusMessage] = asyncio.Queue()
        inbox = self._bus.new_inbox(TENANT)
        subscription = await self._bus.subscribe(inbox, replies.put_nowait)
        heard: set[int] = set()
        try:
            await self._bus.publish(
                _SUBJECTS.server(TENANT, owner[0]),
                frames.encode_request(_WRITER, [wire[index] for index in indexes]),
                inbox,
            )
            async with asyncio.timeout(_ANSWER_SECONDS):
                while len(heard) < len(indexes):
                    message = await replies.get()
                    if message.no_responders:
                        await self._suspect(owner)
                        return
                    for element in frames.decode(message.payload):
                        heard.add(element[0])
                        if element[1] == 0:
                            answers[indexes[element[0]]] = element[2]
                        else:
                            _require_retryable(error_from_wire(element[2], element[3]))
        except TimeoutError:
            await self._suspect(owner)
        finally:
            await subscription.unsubscribe()

    async def owners_of(self, stores: list[StoreId]) -> list[tuple[str, str]]:
        """Return server and incarnation of each store's owner. Raises HoldfastError."""
        answer = await self._bus.request(
            _SUBJECTS.coordinator(TENANT, "resolve"),
            frames.encode_control(stores=[[store.kind, store.name] for store in stores]),
            _ANSWER_SECONDS,
            TENANT,
        )
        owners = []
        for owner in frames.decode_control(answer)["owners"]:
            if owner[0] is None:
                raise error_from_wire(owner[1], owner[2])
            owners.append((owner[0], owner[1]))
        return owners

    async def _suspect(self, owner: tuple[str, str]) -> None:
        try:
            await self._bus.request(
                _SUBJECTS.coordinator(TENANT, "suspect"),
                frames.encode_control(server=owner[0], incarnation=owner[1]),
                _ANSWER_SECONDS,
                TENANT,
            )
        except (NoRespondersError, BusTimeoutError):
            # The coordinator is away too; the next try comes soon.
            return


def _require_retryable(error: HoldfastError) -> None:
    if not (error.retryable or isinstance(error, NotOwnerError)):
        raise Violation(f"refused: {error!r}") from error


def _results(answer: bytes | None) -> list[list[int]] | None:
    if answer is None:
        return None
    results = frames.decode_outcome(answer).results
    if isinstance(results, frames.Run):
        seq, revision, length, _ = results
        return [[seq + index if seq else 0, revision + index] for index in range(length)]
    return [list(each) for each in results]


def _text(answer: bytes | None) -> str:
    return "nothing" if answer is None else str(tuple(frames.decode_outcome(answer)))

"""Operations with arguments of every type and extreme: each is answered with a result or a typed
error, which can be sent; an error changes nothing; what was accepted reaches the file, and is there
when it is opened again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.persist.operations import eviction, reads
from holdfast.persist.store.open_stores import Arrival, OpenStores
from holdfast.persist.store.store import Store
from holdfast.persist.write_path.incoming import take_apart
from holdfast.persist.write_path.tick import Tick
from holdfast.protocol import frames
from holdfast.protocol.errors import ERRORS_BY_CODE, HoldfastError, ProtocolError, RequestError
from holdfast.protocol.limits import FRAME_RESERVE_BYTES, MIN_PAYLOAD_BYTES
from holdfast.protocol.messages import Durability
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.store_file.schema import PAGE_BYTES
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.hostile.mutation import Packed
from tests.support.effort import examples
from tests.support.hostile_values import DEEP, NUMBERS, ODD, nested, payload, values
from tests.support.stores import abandon

UPLOAD = bytes(range(16))
#: A server does not keep more of them from the file for long either.
MANY_TICKS = 50
LARGE = [UPLOAD, 3, bytes(32), 891568578]
#: For each operation arguments that make sense; the test replaces some of them by others.
SENSIBLE: dict[int, list[Any]] = {
    frames.APPEND: [b"v", {"h": "x"}, "id", None, 5.0],
    frames.SET_MESSAGE: [1, b"v", {"h": "x"}, 5],
    frames.DELETE_MESSAGES: [[1, 2]],
    frames.TRIM: [1],
    frames.SET_ENTRY: ["k", b"v", {"h": "x"}, None, 5.0],
    frames.DELETE_ENTRIES: [["k"], None],
    frames.CLEAR: [],
    frames.CONFIGURE: [{"max_messages": 100, "description": "d"}],
    frames.PUT_CHUNK: [UPLOAD, 0, b"abc"],
    frames.DROP_UPLOADS: [[UPLOAD]],
    frames.SET_CURSOR: ["c", None, b"config", b"state", [[1, b"d"], [2, b"d"]], [1]],
    frames.DELETE_CURSOR: ["c", None],
    frames.EXPECT: [None, 0],
    frames.CONSUMER_CONFIGURE: ["c", {"max_ack_pending": 9}, 1],
    frames.CONSUMER_FETCH: [4, 10],
    frames.CONSUMER_ACK: [4, [[0, 1, 1, 0], [1, 2, 1, 10]]],
    frames.CONSUMER_DELETE: ["c"],
    frames.GET_MESSAGE: [1],
    frames.GET_MESSAGES: [1, 9, 0, 10, 5],
    frames.GET_ENTRY: ["k"],
    frames.GET_ENTRIES: ["", "a", 10, True],
    frames.HEAD: [],
    frames.CHANGES: [0, 0, 10, 1],
    frames.CONFIG: [],
    frames.UPLOAD: [UPLOAD],
    frames.READ_CHUNK: [UPLOAD, 0],
    frames.CONSUMERS: ["c"],
    frames.GET_SEQS: [[1, 2]],
    frames.CURSORS: ["c", "c", 1],
    frames.GET_BY_SUBJECT: [["a.*", "b"], 1, 0, 10, 1000],
    frames.GET_LASTS: [["a.>"], 9, 1, 10],
    frames.SUBJECTS: ["a.*", "a.b", 10],
    frames.COUNT: [["a.*", "b"], 1, False, 9],
    frames.GAPS: [1, 10],
}


@st.composite
def one_operation(draw: st.DrawFn) -> list[Any]:
    number = draw(st.sampled_from([*SENSIBLE, frames.BATCH]))
    if number == frames.BATCH:
        members = draw(st.one_of(values, st.lists(one_operation(), max_size=3)))
        return [number, members]
    arguments = list(SENSIBLE[number])
    for _ in range(draw(st.integers(0, 2))):
        if arguments:
            arguments[draw(st.integers(0, len(arguments) - 1))] = draw(values)
    cut = draw(st.integers(0, 3))
    if cut == 1:
        arguments = arguments[: draw(st.integers(0, len(arguments)))]
    elif cut == 2:
        arguments.append(draw(values))
    return [
        draw(st.one_of(st.just(number), st.just(number), values)) if cut == 3 else number,
        *arguments,
    ]


@st.composite
def one_group(draw: st.DrawFn) -> list[Any]:
    wanted = draw(st.lists(one_operation(), min_size=1, max_size=4))
    return [
        draw(st.one_of(st.integers(1, 2), values)),
        draw(st.one_of(st.just("a.b"), st.just("a.b"), values)),
        draw(st.sampled_from(["write", "read", 1 << 62, (1 << 63) - 1, (1 << 64) - 1, -1])),
        draw(st.sampled_from(["first_unacked", 0, -1, (1 << 63) - 1])),
        draw(st.one_of(st.sampled_from([0, 1, 2, 3]), values)),
        wanted,
    ]


class Server:
    """A stream and a kv, on real files, behind the wire: frames in, the elements of replies out."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.open_stores = OpenStores()
        self.number = 0
        #: Stands still, so that nothing expires.
        self.time = 1000
        self.counters: dict[StoreId, int] = {}
        for kind in StoreKind:
            self.open(StoreId("acme", kind, "a.b"), None)

    def store(self, kind: int) -> Store:
        store = self.open_stores.find(StoreId("acme", kind, "a.b"))
        assert store is not None
        return store

    def path(self, store: StoreId) -> Path:
        return self.directory / f"{StoreKind(store.kind).word}.db"

    def open(self, store: StoreId, file: StoreFile | None) -> None:
        def create(page_bytes: int = PAGE_BYTES) -> StoreFile:
            path = self.path(store)
            return StoreFile.create(path, store, time=1000, page_bytes=page_bytes)

        self.open_stores.opened(Store(store, 7, file, create))

    def send(self, groups: list[Any], writer: Any = b"w") -> list[list[Any]]:
        """Send one frame; return the elements of its reply, each by the group that it answers."""
        for group in groups:
            if group[2] == "write" and isinstance(group[0], int):
                store = StoreId("acme", group[0], "a.b")
                group[2] = self.counters[store] = self.counters.get(store, 0) + 1
            elif group[2] == "write":
                group[2] = 1
            elif group[2] == "read":
                group[2] = 0
            if group[3] == "first_unacked":
                group[3] = group[2]
        try:
            incoming = take_apart("acme", payload([writer, groups]), "r", self.open_stores)
        except HoldfastError as error:
            assert isinstance(error, ProtocolError | RequestError), error
            return [frames.error_result(-1, error)]
        self.number += 1
        tick = Tick(self.number, self.time, Durability.SYNCED)
        for index, error in incoming.refusals:
            tick.refuse_at("r", index, error)
        for arrival in incoming.arrivals:
            self.execute(tick, arrival)
        for store in tick.limited():
            eviction.evict(store)
        if tick.records():
            tick.committed(1)
        assert not tick.mishaps, tick.mishaps
        elements = tick.synced.pop("r", []) + tick.applied.pop("r", [])
        for store, arrival in tick.reads:
            store.materialise(self.number)
            results = reads.execute(store, "s1", arrival.group.operations)
            outcome = frames.encode_outcome(store.epoch, store.time, 0, results)
            elements.append([arrival.position, 0, outcome])
        for store in self.open_stores.stores():
            if len(store.pending.ticks) > MANY_TICKS:
                store.materialise(self.number)
            store.validate()
        return elements

    def execute(self, tick: Tick, arrival: Arrival) -> None:
        store = self.open_stores.find(arrival.store)
        if store is None:
            return
        if store.retention is not None or store.uploads_due_at <= tick.time:
            tick.expire(store)
        if arrival.writes:
            tick.write(store, arrival)
        else:
            tick.read(store, arrival)

    def state(self, store: Store) -> Any:
        """All that an operation may change of a store in memory."""
        return (
            store.revision, store.last_seq, store.count, store.bytes, len(store.changes),
            store.config,
            store.contents.upload(UPLOAD),
            [store.contents.message_bytes(seq) for seq in range(1, min(store.last_seq, 20) + 1)],
            [(each.name, each.next_seq, each.pending) for each in store.consumers.by_id.values()],
            len(store.cursors), store.cursors.size_bytes, store.cursors.rows("c"),
        ) if store.is_stream else (
            store.revision, store.count, store.bytes, len(store.changes), store.config,
            store.contents.upload(UPLOAD),
            store.contents.entry_state("k"), store.contents.entry_state("a"),
        )  # fmt: skip

    def reopen(self) -> None:
        """Bring everything into the files, and open them again."""
        for store in self.open_stores.stores():
            store.materialise(self.number)
            before = self.state(store)
            if store.file is None:
                continue
            store.file.checkpoint()
            store.file.close()
            self.open_stores.closed(store)
            self.open(store.id, StoreFile.open(self.path(store.id), store.id))
            assert self.state(self.store(store.id.kind)) == before

    def close(self) -> None:
        for store in self.open_stores.stores():
            abandon(store)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with closing(Server(tmp_path)) as server:
        yield server


def check_answers(groups: list[Any], elements: list[list[Any]]) -> None:
    """Each group has one answer, of the right shape, and all of them can be sent."""
    reply = frames.encode(elements)
    assert len(reply) <= MIN_PAYLOAD_BYTES * 4
    if [each[0] for each in elements] == [-1]:
        groups = groups[:1]
        check_error(elements[0][2], elements[0][3])
        return
    for index, status, *rest in elements:
        assert 0 <= index < len(groups)
        if status:
            check_error(*rest)
            continue
        outcome = frames.decode_outcome(rest[0])
        assert len(rest[0]) <= MIN_PAYLOAD_BYTES - FRAME_RESERVE_BYTES
        if isinstance(outcome.results, list):
            for result in outcome.results:
                if type(result) is list and len(result) == 2 and type(result[0]) is str:
                    check_error(*result)


def check_error(code: Any, fields: Any) -> None:
    assert code in ERRORS_BY_CODE
    assert type(fields) is dict
    assert code != "internal_error", fields
    assert len(frames.pack(fields)) < 4096
    assert str(ERRORS_BY_CODE[code](**fields))


def poisoned(server: Server, kind: int, *operation: Any) -> str:
    """Return the code of what a single operation is refused with, after checking that it did
    nothing."""
    store = server.store(kind)
    before = server.state(store)
    verb = "read" if operation[0] >= frames.FIRST_READ else "write"
    group = [kind, "a.b", verb, "first_unacked", 0, [list(operation)]]
    (element,) = server.send([group])
    check_answers([group], [element])
    assert server.state(store) == before
    if element[1]:
        return str(element[2])
    ((code, _),) = frames.decode_outcome(element[2]).results
    return str(code)


@pytest.mark.parametrize(
    ("kind", "operation", "code"),
    [
        (1, [frames.PUT_CHUNK, UPLOAD, (1 << 64) - 1, b"x"], "invalid_argument"),
        (1, [frames.PUT_CHUNK, UPLOAD, (1 << 63) - 1, b"x"], "too_large"),
        (2, [frames.READ_CHUNK, UPLOAD, (1 << 64) - 1], "invalid_argument"),
        (1, [frames.SET_MESSAGE, 1 << 63, b""], "invalid_argument"),
        (2, [frames.SET_ENTRY, nested(1000), b""], "malformed_frame"),
        (1, [frames.APPEND, nested(1000)], "malformed_frame"),
        (1, [frames.APPEND, b"", nested(500, b"\x81\xa1k")], "malformed_frame"),
        (1, [frames.CONFIGURE, {"max_bytes": nested(900)}], "malformed_frame"),
        (1, [frames.CONFIGURE, {"durability": [[[[]]]]}], "invalid_argument"),
        (1, [frames.CONSUMER_ACK, 0, nested(1000)], "malformed_frame"),
        (1, [frames.CONSUMER_CONFIGURE, nested(1000), {}], "malformed_frame"),
        (1, [frames.APPEND, Packed(b"\xd4\x05x")], "malformed_frame"),
        (1, [frames.GET_SEQS, [(1 << 63) - 1, 1 << 63]], "invalid_argument"),
    ],
)  # fmt: skip
def test_a_poison_operation_is_refused_by_itself(
    server: Server, kind: int, operation: list[Any], code: str
) -> None:
    assert poisoned(server, kind, *operation) == code


@given(frames_sent=st.lists(st.lists(one_group(), min_size=1, max_size=3), min_size=1, max_size=4))
@settings(max_examples=examples(40), deadline=None)
def test_whatever_operations_hold_each_is_answered_and_errors_change_nothing(
    frames_sent: list[list[list[Any]]],
) -> None:
    with TemporaryDirectory() as directory, closing(Server(Path(directory))) as server:
        for groups in frames_sent:
            check_answers(groups, server.send(groups))
        server.reopen()
        sensible = [
            [1, "a.b", "write", "first_unacked", 0, [[frames.APPEND, b"v"]]],
            [2, "a.b", "write", "first_unacked", 0, [[frames.CLEAR], [frames.SET_ENTRY, "k", b""]]],
        ]
        check_answers(sensible, server.send(sensible))


def seed(kind: int) -> list[list[Any]]:
    """Writes after which every sensible operation finds something."""
    if kind == StoreKind.STREAM:
        return [[frames.APPEND, b"a"], [frames.APPEND, b"b"], [frames.PUT_CHUNK, UPLOAD, 0, b"abc"],
                [frames.CONSUMER_CONFIGURE, "c", {}, 1], [frames.CONSUMER_FETCH, 4, 2]]  # fmt: skip
    return [[frames.SET_ENTRY, "k", b"a"], [frames.PUT_CHUNK, UPLOAD, 0, b"abc"]]


def mutations() -> Iterator[list[Any]]:
    """Yield every operation with each of its arguments, and each element of these, replaced by each
    of the hostile values."""
    hostile = [*NUMBERS, *ODD, *DEEP]
    for number, arguments in SENSIBLE.items():
        yield [number, *arguments]
        for place, argument in enumerate(arguments):
            for value in hostile:
                tried = [value]
                if isinstance(argument, list) and argument:
                    tried += [[value], [value, *argument[1:]]]
                if isinstance(argument, dict):
                    tried.append(dict.fromkeys(argument, value))
                for each in tried:
                    yield [number, *arguments[:place], each, *arguments[place + 1 :]]
    for value in hostile:
        yield [value]
        yield [frames.BATCH, value]
        yield [frames.BATCH, [value]]
        yield [frames.BATCH, [[frames.APPEND, b""], [frames.APPEND, value]]]
        yield [frames.BATCH, [[frames.SET_ENTRY, "k", b""], [frames.SET_ENTRY, value, b""]]]
        for verb in range(4):
            yield [frames.CONSUMER_ACK, 4, [[verb, 1, 1, value], [verb, value, value, value]]]


@pytest.mark.parametrize("kind", list(StoreKind))
def test_every_argument_of_every_operation_may_be_anything(server: Server, kind: StoreKind) -> None:
    check_answers([0], server.send([[kind, "a.b", "write", "first_unacked", 0, seed(kind)]]))
    for operation in mutations():
        opened = server.store(kind)
        before = server.state(opened)
        reads_it = operation[0] in list(SENSIBLE) and operation[0] >= frames.FIRST_READ
        group = [kind, "a.b", "read" if reads_it else "write", "first_unacked", 0, [operation]]
        (element,) = elements = server.send([group])
        check_answers([group], elements)
        refused = bool(element[1])
        if not refused:
            results = frames.decode_outcome(element[2]).results
            refused = (
                type(results) is list
                and type(results[0]) is list
                and (len(results[0]) == 2 and type(results[0][0]) is str)
            )
        if refused:
            assert server.state(opened) == before, operation
    server.reopen()
    check_answers([0], server.send([[kind, "a.b", "write", "first_unacked", 0, seed(kind)]]))

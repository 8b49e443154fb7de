"""Archived messages that a server with the role `archive` reads for an owner: checked, bounded, and
never missed when that server is of no use."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.persist.archive_reading import archive_access, archive_server
from holdfast.persist.archive_reading.archive_access import ArchiveAccess
from holdfast.persist.archive_reading.archive_server import ArchiveServer
from holdfast.persist.archive_reading.asks import (
    ArchiveAsk,
    NotClaimedError,
    WrongAnswerError,
    answer_of,
    bodies_of_answer,
    parts_of,
    work_of,
)
from holdfast.persist.archive_reading.kept_rows import KeptRows
from holdfast.persist.peers import zone_helpers
from holdfast.persist.peers.coordination import Helpers
from holdfast.persist.peers.zone_helpers import ZoneHelpers
from holdfast.protocol import frames
from holdfast.protocol.bus.bus import BusMessage
from holdfast.protocol.bus.bus_memory import MemoryNetwork
from holdfast.protocol.compression import compressed_always
from holdfast.protocol.errors import (
    ArchiveMissingError,
    ArchiveUnreadableError,
    FencedError,
    HoldfastError,
    InvalidNameError,
    MalformedFrameError,
    TooLargeError,
    UnavailableError,
)
from holdfast.protocol.limits import (
    CACHE_IDLE_SECONDS,
    CACHE_MAX_AGE_SECONDS,
    MIB,
    PAGE_BYTES,
    PAGE_ROWS,
)
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.work.cold_work import archive_works
from holdfast.protocol.work.roles import Role
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.store_file.applying import pack_headers
from holdfast.shared_fs.store_file.archived_blocks import (
    ArchivedMessage,
    ArchivePlace,
    Bodies,
    checksum_of,
)
from tests.support.near import named
from tests.support.write_path_parts import a_life, at_once

PLACE = ArchivePlace("", "acme", "notes")
DAY_MS = 24 * 60 * 60 * 1000
Body = tuple[bytes, Any]


def message_of(
    seq: int, body: Body, *, time: int = 1000, place: ArchivePlace = PLACE
) -> ArchivedMessage:
    value, headers = body
    packed = pack_headers(headers)
    size_bytes = len(value) + len(packed or b"")
    return ArchivedMessage(seq, seq, time, size_bytes, checksum_of(value, packed), place)


def body_of(seq: int) -> Body:
    return b"value %d" % seq, {"number": str(seq)} if seq % 2 else None


def some(*seqs: int) -> list[ArchivedMessage]:
    return [message_of(seq, body_of(seq)) for seq in seqs]


# What is asked, and what is answered

BODIES = st.one_of(
    st.tuples(
        st.binary(max_size=50),
        st.one_of(st.none(), st.dictionaries(st.text(max_size=5), st.text(max_size=5), min_size=1)),
    ),
    st.binary(max_size=50).map(lambda value: compressed_always(value, {"a": "b"})),
    # An encrypted value: the box that it has in the place of headers begins with 0xc1.
    st.tuples(st.binary(max_size=50), st.binary(max_size=20).map(lambda box: b"\xc1" + box)),
)


@given(st.lists(BODIES, min_size=1, max_size=8), st.one_of(st.none(), st.integers(0, 1 << 40)))
def test_an_ask_and_its_answer_arrive_as_they_were_sent(
    bodies: list[Body], age_ms: int | None
) -> None:
    messages = [message_of(seq, body) for seq, body in enumerate(bodies, 1)]
    ask = ArchiveAsk(PLACE, messages, age_ms)
    arrived = ArchiveAsk.from_wire(frames.decode_control(frames.encode_control(**ask.to_wire())))
    assert arrived == ask
    known = {(each.seq, each.revision): body for each, body in zip(messages, bodies, strict=True)}
    told = frames.encode_control(bodies=answer_of(arrived, known, MIB))
    assert len(told) <= MIB
    assert bodies_of_answer(frames.decode_control(told), messages) == known


@given(
    st.lists(st.integers(0, 2 * PAGE_BYTES), min_size=1, max_size=60),
    st.lists(st.integers(0, 2), min_size=60, max_size=60),
)
def test_every_message_is_asked_for_once_and_no_ask_is_refused_for_its_size(
    sizes: list[int], places: list[int]
) -> None:
    messages = [
        ArchivedMessage(seq, seq, 1000, min(size, 1 << 20), 0, PLACE._replace(table=f"t{place}"))
        for seq, (size, place) in enumerate(zip(sizes, places, strict=False), 1)
    ]
    parts = list(parts_of([*messages, messages[0]]))
    assert sorted(each.seq for part in parts for each in part) == [each.seq for each in messages]
    for part in parts:
        ask = ArchiveAsk(part[0].place, part)
        assert {each.place for each in part} == {ask.place}
        assert ArchiveAsk.from_wire(ask.to_wire()) == ask


def test_a_page_of_tiny_messages_is_one_ask() -> None:
    messages = [ArchivedMessage(seq, seq, 1000, 5, 0, PLACE) for seq in range(1, 2 * PAGE_ROWS + 1)]
    assert [len(part) for part in parts_of(messages)] == [PAGE_ROWS, PAGE_ROWS]


def test_who_pages_through_a_day_asks_the_same_server() -> None:
    first = message_of(1, body_of(1), time=5 * DAY_MS)
    assert work_of("", first) == work_of("", replace(first, seq=9, time=6 * DAY_MS - 1))
    others = {work_of("", replace(first, time=day * DAY_MS)) for day in range(200)}
    others |= {work_of("", replace(first, place=PLACE._replace(name=f"n{n}"))) for n in range(200)}
    assert others == set(archive_works(""))
    assert not others & set(archive_works("another zone"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"table": None},
        {"table": "file:///a\nb"},
        {"table": "x" * 4096},
        {"tenant": "a b"},
        {"tenant": 7},
        {"name": ""},
        {"name": b"notes"},
        {"messages": b""},
        {"messages": b"x" * 39},
        {"messages": [1, 2]},
        {"messages": bytes(40 * (PAGE_ROWS + 1))},
        {"messages": ArchiveAsk(PLACE, [replace(some(1)[0], seq=0)]).to_wire()["messages"]},
        {"messages": ArchiveAsk(PLACE, [replace(some(1)[0], revision=-1)]).to_wire()["messages"]},
        {"messages": ArchiveAsk(PLACE, [replace(some(1)[0], time=1 << 60)]).to_wire()["messages"]},
        {"messages": ArchiveAsk(PLACE, [replace(some(1)[0], time=-1)]).to_wire()["messages"]},
        {"messages": ArchiveAsk(PLACE, [replace(some(1)[0], checksum=-1)]).to_wire()["messages"]},
        {
            "messages": ArchiveAsk(PLACE, [replace(some(1)[0], size_bytes=1 << 40)]).to_wire()[
                "messages"
            ]
        },
        {
            "messages": ArchiveAsk(
                PLACE, [replace(each, size_bytes=PAGE_BYTES) for each in some(1, 2)]
            ).to_wire()["messages"]
        },
        {"ahead": 1},
        {"epoch": -1},
        {"epoch": "1"},
        {"epoch": True},
        {"age_ms": -1},
        {"age_ms": "1"},
        {"age_ms": True},
    ],
)
def test_an_ask_for_anything_but_a_page_of_messages_is_refused(wrong: dict[str, Any]) -> None:
    good = ArchiveAsk(PLACE, some(1, 2), 5).to_wire()
    with pytest.raises((MalformedFrameError, InvalidNameError)):
        ArchiveAsk.from_wire(good | wrong)
    for name in good:
        with pytest.raises(MalformedFrameError):
            ArchiveAsk.from_wire({each: good[each] for each in good if each != name})


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"bodies": None},
        {"bodies": []},
        {"bodies": {"1": 2}},
        {"bodies": [list(body_of(1))] * 3},
        {"bodies": [None]},
        {"bodies": [[b"value 1"]]},
        {"bodies": [[b"value 1", {"number": "1"}, 1]]},
        {"bodies": [["value 1", {"number": "1"}]]},
        {"bodies": [[b"value 1", None]]},
        {"bodies": [[b"value 1", {"number": "2"}]]},
        {"bodies": [[b"value 1", {"number": 1}]]},
        {"bodies": [[b"value 1", [1]]]},
        {"bodies": [[b"value 2", {"number": "1"}]]},
        {"bodies": [[b"value 1", {"number": "1", "hf-encoding": "zstd"}]]},
        {"bodies": [[b"value 1", b""]]},
        {"bodies": [[b"value 1", b"\x81\xc4"]]},
        {"bodies": [[b"value 1", b"\x93hf-encoding"]]},
        {"bodies": [[b"value 1", {"number": "1"}], [b"value 3", None]]},
    ],
)
def test_an_answer_with_anything_but_what_was_archived_is_refused(answer: dict[str, Any]) -> None:
    with pytest.raises(WrongAnswerError):
        bodies_of_answer(answer, some(1, 2))


def test_an_answer_has_what_fits_and_a_body_without_room_is_refused() -> None:
    bodies = {(seq, seq): (bytes(1000), None) for seq in (1, 2, 3)}
    ask = ArchiveAsk(PLACE, [message_of(seq, bodies[seq, seq]) for seq in (1, 2, 3)])
    assert len(answer_of(ask, bodies, 2500)) == 2
    with pytest.raises(TooLargeError):
        answer_of(ask, bodies, 900)


# Owners and servers


class Table:
    """An archive with the messages that a test gives it."""

    def __init__(self, bodies: dict[int, Body]) -> None:
        self.contents = bodies
        self.reads: list[list[int]] = []
        self.warmed: list[list[int]] = []
        self.looks: list[str] = []
        self.forgotten = 0
        self.error: HoldfastError | None = None
        self.harm: Callable[[int, Body], Body] = lambda seq, body: body

    def bodies(self, messages: Sequence[ArchivedMessage]) -> Bodies:
        self.reads.append([each.seq for each in messages])
        if self.error is not None:
            raise self.error
        return {
            (each.seq, each.revision): self.harm(each.seq, self.contents[each.seq])
            for each in messages
        }

    def warm(self, messages: Sequence[ArchivedMessage]) -> None:
        self.warmed.append([each.seq for each in messages])
        if self.error is not None:
            raise self.error

    def look_again(self, table: str) -> None:
        self.looks.append(table)

    def forget(self) -> None:
        self.forgotten += 1


class Held:
    """A piece of work that a server has in an epoch."""

    def __init__(self, claims: SomeClaims, work: str, epoch: int) -> None:
        self._claims, self._work, self.epoch = claims, work, epoch

    def is_lost(self) -> bool:
        return self._claims.known.get(self._work) != self.epoch


class SomeClaims:
    """What a server believes to have claimed."""

    def __init__(self, known: dict[str, int]) -> None:
        self.known = known

    @contextlib.contextmanager
    def doing(self, *works: str) -> Iterator[dict[str, Held]]:
        yield {
            work: Held(self, work, self.known[work]) for work in works if work in self.known
        }


class Zone:
    """An owner without the role, and servers with it, on one bus."""

    def __init__(self, root: Path, *servers: str, roles: tuple[Role, ...] = ()) -> None:
        self.root = root
        self.network = MemoryNetwork()
        bodies = {seq: body_of(seq) for seq in range(1, 100)}
        self.tables = {name: Table(bodies) for name in servers}
        self.running: dict[str, asyncio.Task[None]] = {}
        self.lives = {
            name: a_life(Layout(root), server=name, bus=self.network.connect(name))
            for name in servers
        }
        self.own = Table(bodies)
        life = a_life(Layout(root), server="owner", bus=self.network.connect("owner"))
        self.life = replace(life, roles=roles)
        works = archive_works("")
        #: Who has each part, and in which epoch; as the coordinator says, and as they know.
        self.parts = {
            work: (servers[number % len(servers)], 1)
            for number, work in enumerate(works if servers else ())
        }
        self.known = {
            name: {work: epoch for work, (server, epoch) in self.parts.items() if server == name}
            for name in servers
        }
        helpers = ZoneHelpers(named(lambda: Helpers((), self.parts)))
        self.access = ArchiveAccess(self.own, self.life, helpers, self.in_thread)

    async def in_thread(self, function: Any) -> Any:
        await asyncio.sleep(0.001)
        return function()

    async def start(self) -> None:
        for name, table in self.tables.items():
            claims = SomeClaims(self.known[name])
            server = ArchiveServer(
                lambda table=table: table,  # type: ignore[misc]
                *(self.lives[name], self.in_thread, claims),
            )
            self.running[name] = asyncio.create_task(server.run())
        await asyncio.sleep(0.01)

    async def stop(self, *names: str) -> None:
        for name in names or tuple(self.running):
            self.running[name].cancel()
            await asyncio.gather(self.running.pop(name), return_exceptions=True)

    def holder(self, message: ArchivedMessage) -> str:
        """The server that has the part of a message."""
        return self.parts[work_of("", message)][0]

    def pass_on(self, message: ArchivedMessage, server: str, epoch: int) -> None:
        """Another server claims the part of a message, and so it is known from now on."""
        work = work_of("", message)
        self.known[self.parts[work][0]].pop(work, None)
        self.parts[work] = server, epoch
        self.known[server][work] = epoch

    def counts(self, server: str | None = None) -> dict[str, float]:
        life = self.life if server is None else self.lives[server]
        return {
            (sample.labels[0][1] if sample.labels else sample.name): float(sample.value)  # type: ignore[arg-type]
            for sample in life.statistics.samples()
            if "archive" in sample.name and sample.value
        }


def expected(*seqs: int) -> dict[tuple[int, int], Body]:
    return {(seq, seq): body_of(seq) for seq in seqs}


async def test_an_owner_without_the_role_reads_nothing_itself(tmp_path: Path) -> None:
    zone = Zone(tmp_path, "r1", "r2", "r3", roles=(Role.PERSIST,))
    await zone.start()
    messages = some(*range(1, 50))
    for _ in range(3):
        assert await zone.access.bodies(messages) == expected(*range(1, 50))
    assert zone.own.reads == []
    first = zone.holder(messages[0])
    assert len(zone.tables[first].reads) == 3
    others = [table for name, table in zone.tables.items() if name != first]
    assert all(table.reads == [] for table in others), "only one has its rows at hand"
    assert zone.counts() == {"server": 147}
    assert zone.counts(first) == {
        "answered": 3,
        metrics.ARCHIVE_SERVED.name: 147,
    }
    await zone.stop()


async def test_an_owner_with_the_role_asks_nobody(tmp_path: Path) -> None:
    zone = Zone(tmp_path, "r1", roles=(Role.PERSIST, Role.ARCHIVE))
    await zone.start()
    assert await zone.access.bodies(some(1, 2)) == expected(1, 2)
    assert zone.tables["r1"].reads == []
    assert zone.counts() == {"own": 2}
    await zone.stop()


async def test_without_a_server_or_with_dead_ones_the_owner_reads_itself_at_once(
    tmp_path: Path,
) -> None:
    alone = Zone(tmp_path, roles=(Role.PERSIST,))
    assert await alone.access.bodies(some(1)) == expected(1)
    # Nobody listens.
    zone = Zone(tmp_path, "r1", "r2", roles=(Role.PERSIST,))
    async with asyncio.timeout(archive_access.ARCHIVE_ASK_SECONDS / 2):
        assert await zone.access.bodies(some(1, 2)) == expected(1, 2)
    assert zone.counts() == {"fallback": 2}


async def test_the_owner_reads_itself_until_another_server_has_claimed_the_part_of_a_dead_one(
    tmp_path: Path,
) -> None:
    zone = Zone(tmp_path, "r1", "r2", "r3", roles=(Role.PERSIST,))
    await zone.start()
    messages = some(3, 4)
    first = zone.holder(messages[0])
    second, third = (name for name in zone.tables if name != first)
    await zone.access.bodies(messages)
    await zone.stop(first)
    assert await zone.access.bodies(messages) == expected(3, 4)
    assert zone.own.reads == [[3, 4]], "it does not wait for a fence"
    assert not zone.tables[second].reads and not zone.tables[third].reads
    zone.pass_on(messages[0], second, 2)
    zone.access._helpers._listed_at = float("-inf")
    assert await zone.access.bodies(messages) == expected(3, 4)
    assert len(zone.tables[second].reads) == 1 and len(zone.own.reads) == 1
    await zone.stop()


async def test_an_owner_with_an_old_list_is_told_so_and_asks_who_has_the_part_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zone_helpers, "_EMPTY_LIST_SECONDS", 0.0)
    zone = Zone(tmp_path, "r1", "r2", roles=(Role.PERSIST,))
    await zone.start()
    messages = some(3, 4)
    first = zone.holder(messages[0])
    [second] = [name for name in zone.tables if name != first]
    await zone.access.bodies(messages)
    # The first one has given it back, and lives.
    zone.pass_on(messages[0], second, 2)
    assert await zone.access.bodies(messages) == expected(3, 4)
    assert (len(zone.tables[first].reads), len(zone.tables[second].reads)) == (1, 1)
    # The coordinator has not heard of it yet: nobody but the owner reads.
    del zone.known[second][work_of("", messages[0])]
    assert await zone.access.bodies(messages) == expected(3, 4)
    assert (len(zone.tables[first].reads), len(zone.tables[second].reads)) == (1, 1)
    assert zone.own.reads == [[3, 4]]
    await zone.stop()


async def test_a_server_that_lost_its_claim_before_its_turn_reads_nothing(tmp_path: Path) -> None:
    zone = Zone(tmp_path, "r1", roles=(Role.PERSIST,))
    message = message_of(1, body_of(1))
    claims, work = SomeClaims(zone.known["r1"]), work_of("", message)
    lost_at: list[Callable[[], Any]] = []

    async def in_thread(function: Callable[[], Any], /) -> Any:
        for lose in lost_at:
            lose()
        return function()

    server = ArchiveServer(lambda: zone.tables["r1"], zone.lives["r1"], in_thread, claims)
    ask = frames.encode_control(**ArchiveAsk(PLACE, [message], epoch=1).to_wire())
    await server._read(ask)
    lost_at.append(lambda: claims.known.update({work: 3}))
    with pytest.raises(NotClaimedError):
        await server._read(ask)
    assert zone.tables["r1"].reads == [[1]]
    # An owner of an earlier version knows no claims, and is answered.
    claims.known.clear()
    lost_at.clear()
    await server._read(frames.encode_control(**ArchiveAsk(PLACE, [message]).to_wire()))
    assert zone.tables["r1"].reads == [[1], [1]]


async def test_a_server_that_hangs_delays_one_read_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_access, "ARCHIVE_ASK_SECONDS", 0.05)
    zone = Zone(tmp_path, "r1", "r2", "r3", roles=(Role.PERSIST,))
    asked: list[object] = []
    bus = zone.network.connect("hung")
    for server in zone.tables:
        await bus.subscribe(f"hf._.arc.{server}", asked.append)
    for _ in range(5):
        assert await zone.access.bodies(some(1)) == expected(1)
    assert len(asked) == 1


async def test_a_server_that_answers_bit_by_bit_leaves_the_owner_time_to_read_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_access, "ARCHIVE_ASK_SECONDS", 0.1)
    zone = Zone(tmp_path, "r1", roles=(Role.PERSIST,))
    bus = zone.network.connect("slow")

    def answer(message: BusMessage) -> None:
        ask = ArchiveAsk.from_wire(frames.decode_control(message.payload))
        value, headers = body_of(ask.messages[0].seq)
        reply = frames.encode_control(bodies=[[value, headers]])
        later.append(asyncio.ensure_future(tell(message.reply, reply)))

    async def tell(subject: str, reply: bytes) -> None:
        await asyncio.sleep(0.01)
        await bus.publish(subject, reply)

    later: list[asyncio.Future[None]] = []
    await bus.subscribe("hf._.arc.r1", answer)
    seqs = range(1, 100)
    assert await zone.access.bodies(some(*seqs)) == expected(*seqs)
    assert later and zone.own.reads == [[*seqs]]


@pytest.mark.parametrize(
    "harm",
    [
        lambda seq, body: (body[0] + b"!", body[1]),
        lambda seq, body: (body[0], {"other": "header"}),
        lambda seq, body: body_of(seq + 1),
        lambda seq, body: (body[0], b"\xc1box"),
    ],
)
async def test_what_a_server_gets_wrong_is_noticed_and_the_owner_reads_it(
    tmp_path: Path, harm: Any, caplog: pytest.LogCaptureFixture
) -> None:
    zone = Zone(tmp_path, "r1", "r2", roles=(Role.PERSIST,))
    await zone.start()
    messages = some(5, 6, 7)
    first = zone.holder(messages[0])
    zone.tables[first].harm = lambda seq, body: harm(seq, body) if seq == 6 else body
    for _ in range(3):
        assert await zone.access.bodies(messages) == expected(5, 6, 7)
    assert len(zone.tables[first].reads) == 1, "it is asked no more"
    assert "archive.wrong" in caplog.text and first in caplog.text
    assert zone.counts()[metrics.ARCHIVE_WRONG.name] == 1
    assert zone.own.reads == [[5, 6, 7]] * 3
    await zone.stop()


#: It would end an owner that took it for its own.
_FENCED = frames.encode_control_error(FencedError(server="r1", incarnation="i"))


@pytest.mark.parametrize("reply", [b"", b"garbage", b"\x01\xc1", bytes(100_000), _FENCED])
async def test_garbage_in_the_place_of_an_answer_is_refused(tmp_path: Path, reply: bytes) -> None:
    zone = Zone(tmp_path, "r1", roles=(Role.PERSIST,))
    bus = zone.network.connect("hostile")

    def answer(message: BusMessage) -> None:
        tasks.append(asyncio.ensure_future(bus.publish(message.reply, reply)))

    tasks: list[asyncio.Future[None]] = []
    await bus.subscribe("hf._.arc.r1", answer)
    assert await zone.access.bodies(some(1, 2)) == expected(1, 2)
    assert tasks and zone.own.reads == [[1, 2]]


async def test_garbage_that_is_asked_is_refused_and_the_server_goes_on(tmp_path: Path) -> None:
    zone = Zone(tmp_path, "r1", roles=(Role.PERSIST,))
    await zone.start()
    bus = zone.network.connect("hostile")
    good = ArchiveAsk(PLACE, some(1)).to_wire()
    for payload in (b"", b"garbage", frames.encode_control(**good | {"name": 7})):
        with pytest.raises(HoldfastError):
            frames.decode_control(await bus.request("hf._.arc.r1", payload, 1.0))
    assert await zone.access.bodies(some(1)) == expected(1)
    assert zone.counts("r1")["refused"] == 3
    await zone.stop()


async def test_only_the_owner_says_that_something_is_missing(tmp_path: Path) -> None:
    zone = Zone(tmp_path, "r1", roles=(Role.PERSIST,))
    await zone.start()
    missing = ArchiveMissingError(store="notes", first_seq=1, last_seq=2, table="t", reason="r")
    zone.tables["r1"].error = missing
    assert await zone.access.bodies(some(1, 2)) == expected(1, 2)
    zone.own.error = missing
    with pytest.raises(ArchiveMissingError):
        await zone.access.bodies(some(1, 2))
    await zone.stop()


async def test_an_owner_that_cannot_read_itself_says_so_only_if_no_server_soon_can(
    tmp_path: Path,
) -> None:
    zone = Zone(tmp_path, "r1", roles=(Role.PERSIST,))
    zone.own.error = ArchiveUnreadableError(store="notes", reason="no pyarrow")
    with pytest.raises(UnavailableError):
        await zone.access.bodies(some(1))
    zone = Zone(tmp_path, "r1", roles=(Role.PERSIST,))
    zone.own.error = ArchiveUnreadableError(store="notes", reason="no pyarrow")
    await zone.start()
    assert await zone.access.bodies(some(1)) == expected(1)
    zone.tables["r1"].error = zone.own.error
    with pytest.raises(ArchiveUnreadableError):
        await zone.access.bodies(some(1))
    await zone.stop()


async def test_the_server_that_will_be_asked_is_told_where_a_reader_will_come(
    tmp_path: Path,
) -> None:
    zone = Zone(tmp_path, "r1", "r2", "r3", roles=(Role.PERSIST,))
    await zone.start()
    near = message_of(1, body_of(1), time=5 * DAY_MS)
    far = message_of(9, body_of(9), time=6 * DAY_MS)
    await zone.access.warm([near, far])
    first = zone.holder(far)
    assert {name: table.warmed for name, table in zone.tables.items() if table.warmed} == {
        first: [[1, 9]]
    }
    assert all(table.reads == [] for table in (*zone.tables.values(), zone.own))
    # That is no reason for the owner to read it.
    zone.tables[first].error = UnavailableError(reason="away")
    await zone.access.warm([near, far])
    await zone.stop()
    with pytest.raises(UnavailableError):
        await zone.access.warm([near, far])
    assert zone.own.warmed == [] == zone.own.reads


async def test_what_does_not_fit_in_one_answer_is_asked_for_again(tmp_path: Path) -> None:
    zone = Zone(tmp_path, "r1", roles=(Role.PERSIST,))
    # The owner's file has smaller, compressed values than the table.
    bodies = {seq: (bytes((seq,)) * 400_000, None) for seq in range(1, 6)}
    messages = [replace(message_of(seq, body), size_bytes=100) for seq, body in bodies.items()]
    zone.tables["r1"].contents = bodies
    await zone.start()
    found = await zone.access.bodies(messages)
    assert found == {(seq, seq): body for seq, body in bodies.items()}
    assert zone.tables["r1"].reads == [[1, 2, 3, 4, 5], [3, 4, 5], [5]]
    assert zone.own.reads == []
    await zone.stop()


async def test_before_values_are_left_to_it_the_table_is_looked_up_by_whoever_reads_it(
    tmp_path: Path,
) -> None:
    zone = Zone(tmp_path, "r1", roles=(Role.PERSIST,))
    asked: list[ArchiveAsk] = []
    bus = zone.network.connect("watching")
    await bus.subscribe(
        "hf._.arc.r1",
        lambda message: asked.append(ArchiveAsk.from_wire(frames.decode_control(message.payload))),
    )
    await zone.start()
    await zone.access.bodies(some(1))
    zone.access.look_again("another")
    await zone.access.bodies(some(1))
    zone.access.look_again("")
    await zone.access.bodies(some(1))
    await asyncio.sleep(0.01)
    await zone.access.bodies(some(1))
    ages = [ask.age_ms for ask in asked]
    assert ages[:2] == [None, None]
    assert ages[2] is not None and ages[3] is not None and ages[2] + 9 <= ages[3]
    await zone.stop()
    for _ in range(2):
        assert await zone.access.bodies(some(1)) == expected(1)
    assert zone.own.looks == [""]


async def test_a_server_looks_a_table_up_again_only_if_it_did_longer_ago_than_an_ask_allows(
    tmp_path: Path,
) -> None:
    table = Table({1: body_of(1)})
    life = a_life(Layout(tmp_path), server="r1", bus=MemoryNetwork().connect("r1"))
    server = ArchiveServer(lambda: table, life, Zone(tmp_path).in_thread, SomeClaims({}))

    async def ask(age_ms: int | None) -> int:
        fields = ArchiveAsk(PLACE, some(1), age_ms).to_wire()
        await server._read(frames.encode_control(**fields))
        return len(table.looks)

    assert [await ask(age_ms) for age_ms in (None, 0, None, 600_000, 0)] == [0, 1, 1, 1, 2]


async def test_a_server_that_has_too_much_to_do_refuses_and_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_server, "_MAX_WAITING", 4)
    zone = Zone(tmp_path, "r1", roles=(Role.PERSIST,))
    await zone.start()
    found = await asyncio.gather(*(zone.access.bodies(some(seq)) for seq in range(1, 13)))
    assert found == [expected(seq) for seq in range(1, 13)]
    counts = zone.counts()
    assert counts["server"] >= 4 and counts["fallback"] > 0
    await zone.access.bodies(some(1))
    assert zone.counts()["server"] == counts["server"] + 1
    await zone.stop()


async def test_rows_leave_the_memory_when_nobody_reads_and_all_of_them_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone = Zone(tmp_path, roles=(Role.PERSIST,))
    now = 100.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    rows = KeptRows(zone.own.forget, at_once)
    await rows.look()
    rows.used()
    now += CACHE_IDLE_SECONDS - 1
    await rows.look()
    assert zone.own.forgotten == 0
    now += 1
    await rows.look()
    await rows.look()
    assert zone.own.forgotten == 1
    began_at = now
    while now < began_at + CACHE_MAX_AGE_SECONDS:
        rows.used()
        await rows.look()
        assert zone.own.forgotten == 1
        now += CACHE_IDLE_SECONDS / 2
    await rows.look()
    assert zone.own.forgotten == 2


async def test_many_tables_do_not_fill_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_server, "_MAX_TABLES", 2)
    made: list[Table] = []

    def make() -> Table:
        made.append(Table({1: body_of(1)}))
        return made[-1]

    life = a_life(Layout(tmp_path), server="r1", bus=MemoryNetwork().connect("r1"))
    server = ArchiveServer(make, life, Zone(tmp_path).in_thread, SomeClaims({}))
    for number in range(5):
        place = PLACE._replace(table=f"file:///t{number}")
        ask = ArchiveAsk(place, [message_of(1, body_of(1), place=place)])
        await server._read(frames.encode_control(**ask.to_wire()))
    assert [len(table.reads) for table in made] == [2, 2, 1]

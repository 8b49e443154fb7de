"""What a server obeys and believes: only the latest coordinator that it has heard of."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.persist.life_phase import LifePhase
from holdfast.persist.peers.commands import Commands
from holdfast.persist.peers.coordination import Coordination
from holdfast.protocol.bus.bus import Bus, BusMessage
from holdfast.protocol.bus.bus_memory import MemoryNetwork
from holdfast.protocol.control import ServerLoad, ServerPhase, StoreLoad
from holdfast.protocol.errors import (
    DeposedError,
    FencedError,
    HoldfastError,
    MalformedFrameError,
    NoCoordinatorError,
    NotOwnerError,
    OtherClusterError,
    ProtocolError,
    StorageFailedError,
)
from holdfast.protocol.frames import decode_control, encode_control, encode_control_error
from holdfast.protocol.names import StoreId
from holdfast.protocol.subjects import Subjects
from holdfast.shared_fs.disk.layout import Layout
from tests.support.write_path_parts import a_life

ONE = StoreId("acme", 1, "one")
COMMANDS: list[dict[str, str]] = [
    *({"command": "probe"}, {"command": "drain", "incarnation": "1"}, {"command": "register"})
]


class World:
    """A server's coordination, what it was told to do, and the coordinator's next answer."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.phase = LifePhase("a")
        self.cluster = ""
        self.answer: bytes | None = None
        self.asked: list[Mapping[str, Any]] = []
        life = a_life(Layout(Path("/nowhere")), bus=bus)
        self.coordination = Coordination(life, lambda: self.cluster)
        self.commands = Commands(
            life,
            self.coordination,
            self.phase,
            len,  # type: ignore[arg-type]
            lambda limit: ServerLoad("a", "1", 5.0, 50.0, 2, (StoreLoad(ONE, 5.0, 50.0, 3),)),
            self.move,
            lambda store: self.opened_ahead.append(store),
        )
        #: What it was told to open before anybody uses it.
        self.opened_ahead: list[StoreId] = []
        #: What it was told to move, and where to.
        self.moves: list[tuple[list[tuple[StoreId, int]], str]] = []

    def move(self, stores: list[tuple[StoreId, int]], to: str) -> int:
        self.moves.append((stores, to))
        return len(stores)

    def command(self, **fields: object) -> Mapping[str, Any]:
        return decode_control(self.commands.command(encode_control(**fields)))

    async def listen(self) -> None:
        await self.bus.subscribe(Subjects().cluster("*"), self._on_request)

    def _on_request(self, message: BusMessage) -> None:
        self.asked.append(decode_control(message.payload))
        if self.answer is not None:
            self._task = asyncio.create_task(self.bus.publish(message.reply, self.answer))


@pytest.fixture
@asynccontextmanager
async def world() -> AsyncIterator[World]:
    world = World(MemoryNetwork().connect("server"))
    try:
        yield world
    finally:
        await world.bus.close()


async def test_a_command_of_a_deposed_coordinator_is_refused_and_not_obeyed(world: World) -> None:
    assert world.command(command="probe", term=7)["term"] == 7
    for fields in COMMANDS:
        with pytest.raises(DeposedError) as deposed:
            world.command(term=6, **fields)
        assert deposed.value.fields == {"term": 6, "newer_term": 7}
    assert world.phase.now is ServerPhase.RUNNING
    assert world.command(command="probe", term=8)["term"] == 8


async def test_a_command_of_another_clusters_coordinator_is_refused_and_not_obeyed(
    world: World,
) -> None:
    world.cluster = "c0ffee"
    for fields in COMMANDS:
        with pytest.raises(OtherClusterError, match="--prefix"):
            world.command(term=9, cluster="badbad", **fields)
    assert world.phase.now is ServerPhase.RUNNING
    assert world.command(command="probe", term=3, cluster="c0ffee")["term"] == 3
    assert world.command(command="probe", term=4)["term"] == 4


async def test_a_server_that_another_clusters_coordinator_answers_is_told_so_at_once(
    world: World,
) -> None:
    world.cluster = world.coordination.cluster = "c0ffee"
    refusal = FencedError(server="a", incarnation="1")
    await world.listen()
    for answer in (
        encode_control(term=1, cluster="badbad"),
        encode_control_error(refusal, cluster="badbad"),
    ):
        world.answer = answer
        with pytest.raises(OtherClusterError, match="badbad"):
            await world.coordination.register(lambda: False)
    assert world.asked[0]["cluster"] == "c0ffee"
    assert not world.coordination.registered


async def test_a_server_in_a_new_tree_learns_its_cluster_from_the_id_that_the_coordinator_made(
    world: World,
) -> None:
    world.answer = encode_control(term=1, cluster="c0ffee")
    await world.listen()
    registering = asyncio.create_task(world.coordination.register(lambda: False))
    while not world.asked:
        await asyncio.sleep(0)
    world.cluster = "c0ffee"
    await registering
    assert world.coordination.cluster == "c0ffee"


async def test_a_drain_that_was_for_another_incarnation_is_not_obeyed(world: World) -> None:
    world.command(command="drain", term=1, incarnation="0")
    world.command(command="drain", term=1)
    assert world.phase.now is ServerPhase.RUNNING
    world.command(command="drain", term=1, incarnation="1")
    assert world.phase.now is ServerPhase.DRAINING
    world.command(command="undrain", term=1, incarnation="1")
    assert world.phase.now is ServerPhase.RUNNING


async def test_a_move_that_was_for_another_incarnation_is_not_obeyed(world: World) -> None:
    order = {"command": "move", "term": 1, "to": "b", "stores": [["acme", 1, "one", 4]]}
    assert world.command(**order, incarnation="0")["moving"] == 0
    assert world.command(**order)["moving"] == 0
    assert world.moves == []
    assert world.command(**order, incarnation="1")["moving"] == 1
    assert world.moves == [([(ONE, 4)], "b")]


async def test_a_server_tells_its_load_and_its_busiest_stores(world: World) -> None:
    with pytest.raises(MalformedFrameError):
        world.command(command="load", term=3, limit=1 << 20)
    told = world.command(command="load", term=3, limit=8)
    assert (told["operations"], told["bytes"], told["open_stores"]) == (5.0, 50.0, 2)
    assert told["stores"] == [["acme", 1, "one", 3, 5.0, 50.0]]


async def test_a_probe_is_answered_with_the_mode(world: World) -> None:
    changes: list[tuple[Callable[[], None], ServerPhase]] = [
        (lambda: world.phase.set_draining(False), ServerPhase.RUNNING),
        (lambda: world.phase.set_draining(True), ServerPhase.DRAINING),
        (world.phase.stop, ServerPhase.STOPPING),
    ]
    for change, phase in changes:
        change()
        answer = world.command(command="probe", term=3)
        assert answer == {"server": "a", "incarnation": "1", "state": phase, "term": 3}


@pytest.mark.parametrize("payload", [b"", b"\x01\xc1", encode_control(command="dance", term=1)])
async def test_what_makes_no_sense_is_refused_with_a_typed_error(
    world: World, payload: bytes
) -> None:
    with pytest.raises(HoldfastError) as refused:
        decode_control(world.commands.command(payload))
    assert isinstance(refused.value, MalformedFrameError | ProtocolError)


async def test_an_answer_of_a_deposed_coordinator_counts_as_none(world: World) -> None:
    await world.listen()
    world.command(command="probe", term=7)
    world.answer = encode_control(term=6, grants=[[1, 2]])
    with pytest.raises(DeposedError):
        await world.coordination.open([(ONE, False)])
    world.answer = encode_control(term=8, grants=[[1, 2]])
    assert await world.coordination.open([(ONE, False)]) == [[1, 2]]
    assert world.coordination.term == 8


async def test_without_a_coordinator_the_error_says_so(world: World) -> None:
    with pytest.raises(NoCoordinatorError):
        await world.coordination.release([(ONE, 3)])
    await world.coordination.register(lambda: True)
    assert not world.coordination.registered


async def test_an_epoch_that_was_found_is_told_and_a_higher_one_is_required(world: World) -> None:
    await world.listen()
    world.answer = encode_control(term=1, grants=[[6, 2]])
    assert await world.coordination.raise_epoch(ONE, 5) == 6
    assert world.asked[-1]["stores"] == [["acme", 1, "one", False, 5]]
    with pytest.raises(ProtocolError):
        await world.coordination.raise_epoch(ONE, 6)
    error = NotOwnerError(server="a")
    world.answer = encode_control(term=1, grants=[[None, error.code, error.fields]])
    with pytest.raises(NotOwnerError):
        await world.coordination.raise_epoch(ONE, 5)
    world.answer = encode_control_error(NotOwnerError(server="a"))
    with pytest.raises(NotOwnerError):
        await world.coordination.vacate(1)


GRANTED: dict[str, Any] = {
    "command": "granted",
    "term": 3,
    "incarnation": "1",
    "given_up": 0,
    "ended": 2,
    "stores": [[*ONE, 7, 30]],
}


def open_gate(world: World) -> list[HoldfastError]:
    """Let the server's fence say `open`, or what is put into the list."""
    errors: list[HoldfastError] = []

    def check() -> None:
        for error in errors:
            raise error

    gate: Any = world.coordination._gate
    gate.check = check
    return errors


async def test_a_store_that_the_coordinator_granted_by_itself_is_open_to_this_life_alone(
    world: World,
) -> None:
    open_gate(world)
    world.command(**{**GRANTED, "incarnation": "2"})
    assert world.coordination.open_early(ONE) is None
    world.command(**GRANTED)
    grant = world.coordination.open_early(ONE)
    assert grant is not None
    assert grant.epoch == 7
    # The logs of those who had ended by then must have been read.
    assert world.coordination.ended == (3, 2)


async def test_a_grant_that_was_told_alone_opens_its_store_and_one_of_several_opens_none(
    world: World,
) -> None:
    world.command(**{**GRANTED, "incarnation": "2"})
    world.command(**{**GRANTED, "given_up": 1})
    two = [[*ONE, 7, 30], ["acme", 1, "two", 7, 30]]
    world.command(**{**GRANTED, "stores": two})
    assert world.opened_ahead == []
    world.command(**GRANTED)
    assert world.opened_ahead == [ONE]


async def test_a_late_grant_hides_no_end_that_was_told_before(world: World) -> None:
    open_gate(world)
    world.coordination.ended = (3, 5)
    world.command(**GRANTED)
    assert world.coordination.open_early(ONE) is not None
    assert world.coordination.ended == (3, 5)


async def test_a_fenced_server_opens_nothing_that_was_granted_by_itself(world: World) -> None:
    errors = open_gate(world)
    world.command(**GRANTED)
    errors.append(FencedError(server="a", incarnation="1"))
    with pytest.raises(FencedError):
        world.coordination.open_early(ONE)


async def test_a_server_that_cannot_read_its_fence_asks(world: World) -> None:
    errors = open_gate(world)
    world.command(**GRANTED)
    errors.append(StorageFailedError(reason="the mount hangs"))
    assert world.coordination.open_early(ONE) is None


@pytest.mark.parametrize("is_answered", [True, False])
async def test_whatever_is_given_up_voids_the_grants_before_it(
    world: World, is_answered: bool
) -> None:
    open_gate(world)
    await world.listen()
    if is_answered:
        world.answer = encode_control(term=3, cold=[True], deleted=[True])
    gives_up: list[Callable[[], Awaitable[object]]] = [
        lambda: world.coordination.release([(ONE, 7)]),
        lambda: world.coordination.deleted(ONE, 7),
        lambda: world.coordination.cold([(ONE, 7, 30, None)]),
        lambda: world.coordination.vacate(1),
        world.coordination.release_all,
    ]
    for count, give_up in enumerate(gives_up):
        world.command(**{**GRANTED, "given_up": count})
        asking = asyncio.ensure_future(give_up())
        await asyncio.sleep(0)
        assert world.coordination.open_early(ONE) is None
        assert world.coordination.early_grants.given_up is None
        if is_answered:
            await asking
        else:
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking
        assert world.coordination.early_grants.given_up == count + 1

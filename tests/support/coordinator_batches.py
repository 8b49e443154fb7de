"""Two stores, two servers, and batches of what is asked of a coordinator's state."""

from __future__ import annotations

import msgpack

from holdfast.coordinator.answering.batch import Record, Reply, RequestBatch, execute
from holdfast.coordinator.answering.requests import Open, OpenStore, Request
from holdfast.coordinator.decisions.events import RecordDead, RecordLive
from holdfast.coordinator.decisions.membership import MemberView
from holdfast.coordinator.state.state_file import StateFile
from holdfast.protocol.control import ServerState
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.names import StoreId

ONE = StoreId("acme", 1, "one")
TWO = StoreId("acme", 1, "two")
LIVE_A = RecordLive("a", "a1")
LIVE_B = RecordLive("b", "b1")
DEAD_A = RecordDead("a", "a1", "silent", released=False)


def member(server: str, state: ServerState = ServerState.LIVE) -> MemberView:
    return MemberView(server, f"{server}1", state, 0.1, state is ServerState.LIVE, 3, 4, 5.0)


def run(
    state: StateFile,
    *requests: Request,
    records: tuple[Record, ...] = (),
    members: tuple[MemberView, ...] = (),
) -> list[Reply]:
    outcome = execute(state, RequestBatch(records, requests, members, now_ms=1_000))
    assert outcome.failure is None
    return outcome.replies


def fields(reply: Reply) -> dict[str, list[object]]:
    assert not isinstance(reply, HoldfastError), reply
    decoded: dict[str, list[object]] = msgpack.unpackb(msgpack.packb(dict(reply)))
    return decoded


def own(
    state: StateFile,
    *stores: StoreId,
    records: tuple[Record, ...] = (LIVE_A,),
    members: tuple[MemberView, ...] = (member("a"),),
) -> None:
    """Let server `a` open the stores, to write to them."""
    opened = Open("a", "a1", tuple(OpenStore(store, True) for store in stores))
    (reply,) = run(state, opened, records=records, members=members)
    assert all(grant[0] is not None for grant in fields(reply)["grants"])  # type: ignore[index]

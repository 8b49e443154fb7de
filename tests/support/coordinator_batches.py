"""Two stores, two servers, and batches of what is asked of a coordinator's state."""

from __future__ import annotations

from typing import Any

import msgpack

from holdfast.coordinator.answering.batch import RequestBatch, execute
from holdfast.coordinator.answering.records import Record
from holdfast.coordinator.answering.requests import (
    Open,
    OpenStore,
    ReleasedStore,
    ReleaseRequest,
    Request,
)
from holdfast.coordinator.answering.transaction import Reply
from holdfast.coordinator.decisions.events import RecordDead, RecordLive
from holdfast.coordinator.decisions.member import MemberView
from holdfast.coordinator.state.state_file import StateFile
from holdfast.coordinator.state.store_records import StoreRow
from holdfast.protocol.control import ServerState
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.names import StoreId

ONE = StoreId("acme", 1, "one")
TWO = StoreId("acme", 1, "two")
#: What replies are about.
ABOUT = ("owners", "grants", "cold", "stores", "servers")
LIVE_A = RecordLive("a", "a1")
LIVE_B = RecordLive("b", "b1")
DEAD_A = RecordDead("a", "a1", "silent", released=False)


def member(server: str, state: ServerState = ServerState.LIVE) -> MemberView:
    return MemberView(server, f"{server}1", state, 0.1, state is ServerState.LIVE, 3, 4, 5.0)


A, B = member("a"), member("b")


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


def said(reply: Reply) -> object:
    """Return what a reply is about: the class of an error, or its owners, its grants, ..."""
    if isinstance(reply, HoldfastError):
        return type(reply)
    found = fields(reply)
    return next((found[name] for name in ABOUT if name in found), found)


def check(
    state: StateFile,
    *steps: Request | tuple[Request, object],
    records: tuple[Record, ...] = (),
    members: tuple[MemberView, ...] = (A,),
) -> None:
    """Answer requests in one batch, and compare what is said to those that come with an answer."""
    pairs = [step if isinstance(step, tuple) else (step, ...) for step in steps]
    replies = run(state, *(request for request, _ in pairs), records=records, members=members)
    for (request, expected), reply in zip(pairs, replies, strict=True):
        assert expected is ... or said(reply) == expected, request


def writes(server: str, *stores: StoreId) -> Open:
    """Ask to open stores, to write to them."""
    return Open(server, f"{server}1", tuple(OpenStore(store, True) for store in stores))


def reads(server: str, *stores: StoreId) -> Open:
    """Ask to open stores, to read from them."""
    return Open(server, f"{server}1", tuple(OpenStore(store, False) for store in stores))


def releases(server: str, store: StoreId, *details: Any, **more: Any) -> ReleaseRequest:
    return ReleaseRequest(server, f"{server}1", (ReleasedStore(store, *details, **more),))


def refused(server: str) -> list[object]:
    """What a server is told of a store that is another's."""
    return [None, "not_owner", {"server": server}]


def own(state: StateFile, *stores: StoreId, records: tuple[Record, ...] = (LIVE_A,)) -> None:
    """Let server `a` open the stores, to write to them."""
    (reply,) = run(state, writes("a", *stores), records=records, members=(A,))
    assert all(grant[0] is not None for grant in fields(reply)["grants"])  # type: ignore[index]


def row_of(state: StateFile, store: StoreId) -> StoreRow | None:
    """What is recorded of a store."""
    with state.transaction():
        return state.stores.get(store)


def present(state: StateFile) -> dict[tuple[str, str], int]:
    """How many stores each incarnation has that is there."""
    with state.transaction():
        return state.servers.present()

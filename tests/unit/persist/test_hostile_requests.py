"""What peers ask of the coordinator, what it commands, what operators ask, and heartbeats: every
field may be anything. Each message is obeyed, or refused with a typed error that can be sent, or
dropped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.coordinator.answering.batch import RequestBatch, execute
from holdfast.coordinator.answering.parsing import (
    _CLIENT_VERBS,
    _CLUSTER_VERBS,
    _OPERATOR_VERBS,
    parse,
)
from holdfast.coordinator.answering.requests import store_count
from holdfast.coordinator.state.state_file import open_state_file
from holdfast.persist.jobs.administration import Administrator, BucketJobs, ErasingJobs
from holdfast.persist.jobs.deleting import DeletionJobs
from holdfast.persist.jobs.erasure import ErasureJobs
from holdfast.persist.jobs.forking import ForkJobs
from holdfast.persist.jobs.reencrypting import ReencryptJobs
from holdfast.persist.life_phase import LifePhase
from holdfast.persist.peers.commands import Commands
from holdfast.persist.peers.coordination import Coordination
from holdfast.protocol.control import Heartbeat, ServerLoad, ServerPhase, StoreLoad
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.frames import decode_control, encode_control, encode_control_error
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout
from tests.support.coordinator_batches import LIVE_A, LIVE_B, member
from tests.support.hostile_values import DEEP, NUMBERS, ODD, payload
from tests.support.write_path_parts import a_life

PEER = {"server": "a", "incarnation": "a1"}
VERBS: dict[tuple[str, str], dict[str, Any]] = {
    ("acme", "resolve"): {"stores": [[1, "one"], [2, "two"]]},
    ("acme", "suspect"): {**PEER},
    ("acme", "servers"): {},
    ("acme", "stores"): {"kind": 1, "prefix": "o", "after": ["a", 1], "limit": 10},
    ("acme", "statistics"): {"after": ["persist", "a", ""]},
    ("acme", "report"): {"kind": "gateway_http", "name": "g", "report": b"{}"},
    ("_", "drain"): {"server": "b"},
    ("_", "undrain"): {"server": "b"},
    ("_", "forget"): {"server": "b", "reassign": True},
    ("_", "move"): {"tenant": "acme", "kind": 1, "name": "one", "server": "b"},
    ("_", "rebalance"): {"dry_run": True},
    ("_", "tenants"): {"after": "a", "limit": 10},
    ("_", "tenant"): {"tenant": "acme"},
    ("_", "register"): {**PEER, "cluster": "c1"},
    ("_", "cluster"): {"cluster": "c1"},
    ("_", "open"): {**PEER, "stores": [["acme", 1, "one", True, 4]]},
    ("_", "adopt"): {**PEER, "stores": [["acme", 1, "one"]]},
    ("_", "caches"): {**PEER, "zone": "a"},
    ("_", "claim"): {**PEER, "offers": ["reap"], "gives_back": [["collect", 5]]},
    ("_", "tend"): {**PEER, "stores": [["acme", 1, "one", "sweep-0", 5]]},
    ("_", "created"): {**PEER, "stores": [["acme", 1, "one", 5, 5]]},
    ("_", "closed"): {**PEER, "stores": [["acme", 1, "one", 5, 5, 5]]},
    ("_", "usage"): {
        **PEER,
        "stores": [["acme", 1, "one", 5, 5]],
        "tenants": [["acme", 1.5, 2]],
    },
    ("_", "cold"): {**PEER, "stores": [["acme", 1, "one", 5, 5, "sweep-0", 5]]},
    ("_", "deleted"): {**PEER, "stores": [["acme", 1, "two", 5]]},
    ("_", "release"): {**PEER, "stores": [["acme", 1, "one", 5, False, 5, 5]]},
    ("_", "vacate"): {**PEER, "number": 1},
    ("_", "prove"): {**PEER, "number": 1},
    ("_", "seal"): PEER,
    ("_", "owners"): {**PEER, "stores": [["acme", 1, "one"]]},
}
HEARTBEAT = {
    **Heartbeat("a", "a1", ServerPhase.RUNNING, 1, 2, 3.0, 4, 5)._asdict(),
    "roles": ["persist", "tier"],
    "given_up": 5,
}
COMMANDS: list[dict[str, Any]] = [
    {"command": "probe", "term": 3},
    {"command": "register", "term": 3},
    {"command": "drain", "term": 3, "incarnation": "1"},
    {"command": "snapshot", "stores": [["acme", 1, "one"]]},
    {"command": "load", "term": 3, "limit": 5},
    {"command": "move", "term": 3, "incarnation": "1", "to": "b",
     "stores": [["acme", 1, "one", 5]]},
    {"command": "granted", "term": 3, "incarnation": "1", "given_up": 0, "ended": 1,
     "stores": [["acme", 1, "one", 5, 5]]},
]  # fmt: skip
JOBS = [
    {"job": "j", "verb": "versions", "store": ["acme", 1, "one"]},
    {"job": "j", "verb": "restore", "store": ["acme", 1, "one"], "time": 1, "revision": 2,
     "source": ["acme", 1, "two"], "nearest": True, "dry_run": True},
    {"job": "j", "verb": "delete", "store": ["acme", 1, "one"]},
    {"job": "j", "store": [1, "one"], "epoch": 3},
    {"job": "j", "verb": "fork", "store": ["acme", 1, "one"], "parent": ["acme", 1, "two"],
     "seq": 3, "revision": None, "least": 4, "request": "r"},
    {"job": "j", "store": [1, "one"], "parent": [1, "two"], "revision": 4, "request": "r"},
    {"job": "j", "parent": [2, "two"]},
    {"job": "j", "verb": "sweep_stores", "tenant": "acme", "stores": [[1, "one", 3], [2, "b", 4]]},
    {"job": "j", "verb": "reencrypt", "store": ["acme", 1, "one"], "with_archived": True},
]  # fmt: skip


assert {verb for _, verb in VERBS} == {*_CLIENT_VERBS, *_CLUSTER_VERBS, *_OPERATOR_VERBS}


def mutations(fields: dict[str, Any]) -> Iterator[bytes]:
    """Yield messages of these fields with each one, and each element of a list, replaced by
    anything."""
    hostile = [*NUMBERS, *ODD, *DEEP]
    for value in hostile:
        yield payload(value)
        yield payload({"error": value, "fields": value})
        for name, field in fields.items():
            yield payload({**fields, name: value})
            if isinstance(field, list) and field:
                yield payload({**fields, name: [value]})
                yield payload({**fields, name: [value, *field[1:]]})
                inner = field[0] if isinstance(field[0], list) else field
                for place in range(len(inner)):
                    changed = [*inner[:place], value, *inner[place + 1 :]]
                    whole = [changed] if isinstance(field[0], list) else changed
                    yield payload({**fields, name: whole})
    for name in fields:
        yield payload({each: fields[each] for each in fields if each != name})


@pytest.mark.parametrize(("tenant", "verb"), list(VERBS))
def test_whatever_the_coordinator_is_asked_it_answers(
    tmp_path: Path, tenant: str, verb: str
) -> None:
    asked = []
    for message in mutations(VERBS[tenant, verb]):
        try:
            asked.append(parse(tenant, verb, message, "c1"))
        except HoldfastError as error:
            assert error.code != "internal_error"
            assert len(encode_control_error(error)) < 4096
    assert sum(map(store_count, asked)) > 0
    members = (member("a"), member("b"))
    with closing(open_state_file(tmp_path / "state.db", Disk())) as state:
        execute(state, RequestBatch((LIVE_A, LIVE_B), (), members, now_ms=1))
        outcome = execute(state, RequestBatch((), asked, members, now_ms=1))
        assert outcome.failure is None
        assert not outcome.mishaps
        for reply in outcome.replies:
            if isinstance(reply, HoldfastError):
                encode_control_error(reply)
            else:
                decode_control(encode_control(**reply))


def test_a_request_that_raises_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = (member("a"), member("b"))
    with closing(open_state_file(tmp_path / "state.db", Disk())) as state:
        execute(state, RequestBatch((LIVE_A, LIVE_B), (), members, now_ms=1))
        requests = [parse("acme", "resolve", payload({"stores": [[1, name]]})) for name in "abc"]
        plain = state.stores.get

        def store(store_id: Any) -> Any:
            if store_id.name == "b":
                raise RecursionError
            return plain(store_id)

        monkeypatch.setattr(state.stores, "get", store)
        outcome = execute(state, RequestBatch((), requests, members, now_ms=1))
        assert [isinstance(reply, HoldfastError) for reply in outcome.replies] == [
            False,
            True,
            False,
        ]
        [mishap] = outcome.mishaps
        assert isinstance(mishap, RecursionError)
        assert isinstance(outcome.replies[1], HoldfastError)
        assert outcome.replies[1].code == "internal_error"


def test_a_heartbeat_that_makes_no_sense_is_dropped() -> None:
    kept = 0
    for message in mutations(HEARTBEAT):
        try:
            heartbeat = Heartbeat.from_wire(decode_control(message))
        except HoldfastError:
            continue
        kept += 1
        encode_control(**heartbeat._asdict())
        assert len(message) < 1000
    assert 20 < kept < 200


def _load(limit: int) -> ServerLoad:
    return ServerLoad("a", "1", 5.0, 50.0, 2, (StoreLoad(StoreId("acme", 1, "one"), 5.0, 50.0),))


def _moves(stores: list[tuple[StoreId, int]], to: str) -> int:
    assert all(type(epoch) is int for _, epoch in stores)
    return len(stores)


async def test_whatever_a_server_is_commanded_it_answers() -> None:
    for command in COMMANDS:
        for message in mutations(command):
            life = a_life(Layout(Path("/nowhere")))
            coordination = Coordination(life)
            phase = LifePhase("a")
            commands = Commands(
                *(life, coordination, phase, lambda stores: len(stores or ()), _load, _moves),
                lambda store: None,
            )
            try:
                decode_control(commands.command(message))
            except HoldfastError as error:
                assert error.code != "internal_error", (message, error)
            assert 0 <= coordination.term < 1 << 48


async def test_whatever_operators_ask_of_a_server_it_answers() -> None:
    nothing = cast(Any, None)
    for job in JOBS:
        for message in mutations(job):
            deletions = DeletionJobs(nothing, nothing, nothing, None, nothing, bool)
            life = a_life(Layout(Path("/nowhere")))
            forks = ForkJobs(life, *[nothing] * 7)
            jobs = BucketJobs(None, forks)
            erasure = ErasureJobs(life, *[nothing] * 4, shares_files=True)
            reencryption = ReencryptJobs(*[nothing] * 4)
            erasing = ErasingJobs(nothing, reencryption, erasure)
            administrator = Administrator("a", deletions, jobs, erasing)
            replies = [
                administrator.command(message),
                administrator.destroy("acme", message),
                administrator.fork("acme", message),
            ]
            for reply in replies:
                try:
                    assert decode_control(reply) == {"done": False}
                except HoldfastError as error:
                    assert error.code != "internal_error", (message, error)
            await administrator.stop()

"""Quotas as the coordinator keeps them: how many stores, how many bytes, whose share of a rate."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.coordinator.answering.batch import RequestBatch, execute
from holdfast.coordinator.answering.parsing import parse
from holdfast.coordinator.answering.requests import Open, Request
from holdfast.coordinator.decisions.tenant_limits import TenantLimits
from holdfast.coordinator.state.state_file import StateFile, open_state_file
from holdfast.protocol.access.quota import Quota, TenantInfo
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.frames import encode_control
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.disk import Disk
from tests.support.coordinator_batches import LIVE_A, LIVE_B, A, B, fields, run
from tests.support.effort import examples

PEER = {"server": "a", "incarnation": "a1"}
NAMES = ("one", "two", "three", "four")


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateFile]:
    with closing(open_state_file(tmp_path / "state.db", Disk())) as state:
        run(state, records=(LIVE_A, LIVE_B))
        yield state


def ask(verb: str, *stores: list[Any], server: str = "a", **more: Any) -> Request:
    peer = {"server": server, "incarnation": f"{server}1"}
    return parse("_", verb, encode_control(**peer, stores=list(stores), **more))


def answer(
    state: StateFile, request: Request, limits: TenantLimits | None = None
) -> dict[str, Any]:
    batch = RequestBatch((), (request,), (A, B), 1_000, limits or TenantLimits())
    outcome = execute(state, batch)
    assert outcome.failure is None
    assert not outcome.mishaps
    return fields(outcome.replies[0])


def opened(state: StateFile, *names: str, limits: TenantLimits, create: bool = True) -> list[Any]:
    grants = answer(state, ask("open", *[["acme", 1, name, create] for name in names]), limits)
    return [grant[1] if grant[0] is None else "granted" for grant in grants["grants"]]


def use(state: StateFile, tenant: str = "acme") -> tuple[int, int, int]:
    with state.transaction():
        return tuple(state.stores.use(tenant))  # type: ignore[return-value]


def test_a_tenant_gets_as_many_stores_as_it_may_have_and_keeps_those(state: StateFile) -> None:
    limits = TenantLimits({"acme": Quota(max_stores=2)})
    assert opened(state, "one", "two", "three", limits=limits) == [
        "granted", "granted", "limit_exceeded",
    ]  # fmt: skip
    grants = answer(state, ask("open", ["acme", 1, "three", True]), limits)["grants"]
    assert grants[0][2] == {"what": "the tenant's max_stores", "limit": 2, "value": 3}
    assert opened(state, "one", "two", limits=limits) == ["granted"] * 2, "they exist"
    assert opened(state, "three", limits=limits, create=False) == ["granted"], "only to read"
    assert use(state) == (2, 0, 0)
    with state.transaction():
        assert state.stores.get(StoreId("acme", 1, "four")) is None
    assert answer(state, ask("open", ["other", 1, "one", True]), limits)["grants"][0][0] == 1
    # One that is deleted makes room, and so does one that was granted and never written.
    answer(state, ask("deleted", ["acme", 1, "one", 1]))
    answer(state, ask("release", ["acme", 1, "two", 1, True]))
    assert use(state) == (0, 0, 0)
    assert opened(state, "three", "four", "five", limits=limits)[2] == "limit_exceeded"
    limits.quotas = {"acme": Quota(max_stores=0)}
    assert opened(state, "three", "six", limits=limits) == ["granted", "limit_exceeded"]


def test_sizes_are_told_as_states_by_the_owner_alone(state: StateFile) -> None:
    limits = TenantLimits({"acme": Quota(max_bytes=100)})
    opened(state, "one", "two", limits=limits)
    usage = ask("usage", ["acme", 1, "one", 1, 30], ["acme", 1, "two", 1, 50],
                tenants=[["acme", 5.0, 9.0], ["other", 1.0, 1.0]])  # fmt: skip
    for _ in range(3):
        assert answer(state, usage, limits)["tenants"] == {
            "acme": [80, 1.0, 1.0], "other": [0, 1.0, 1.0],
        }  # fmt: skip
    stale = ask("usage", ["acme", 1, "one", 7, 99], ["acme", 1, "no", 1, 99], tenants=[])
    assert answer(state, stale, limits)["tenants"] == {}
    foreign = ask("usage", ["acme", 1, "one", 1, 99], tenants=[["acme", 0, 0]], server="b")
    assert answer(state, foreign, limits)["tenants"]["acme"][0] == 80
    answer(state, ask("closed", ["acme", 1, "one", 1, 9, 31]))
    answer(state, ask("created", ["acme", 1, "two", 9, 51]))
    assert use(state) == (2, 0, 82)
    answer(state, ask("closed", ["acme", 1, "one", 1, 9]))
    answer(state, ask("release", ["acme", 1, "two", 1, False, 9, 52]))
    assert use(state) == (2, 0, 83), "an older server tells no size"
    answer(state, ask("deleted", ["acme", 1, "one", 1]))
    assert use(state) == (1, 0, 52)


@pytest.mark.parametrize("seed", range(examples(4)))
def test_the_sums_are_those_of_the_rows_whatever_is_lost_or_repeated(
    state: StateFile, seed: int
) -> None:
    """A model: servers tell sizes; some reports are lost, some come twice, some late."""
    chance = random.Random(seed)
    limits = TenantLimits({"acme": Quota(max_stores=3)})
    late: list[Request] = []
    for _ in range(300):
        name, server = chance.choice(NAMES), chance.choice("ab")
        tenant, kind = chance.choice(("acme", "other")), chance.choice((1, 2))
        with state.transaction():
            row = state.stores.get(StoreId(tenant, kind, name))
        epoch = row.epoch if row is not None else 1
        place, size = [tenant, kind, name], chance.randrange(1000)
        creates, known_epoch = chance.random() < 0.7, chance.choice((None, epoch))
        request = chance.choice([
            ask("open", [*place, creates, known_epoch], server=server),
            ask("created", [*place, chance.randrange(9), size], server=server),
            ask("closed", [*place, epoch, 9, size], server=server),
            ask("usage", [*place, epoch, size], tenants=[[tenant, 1, 1]], server=server),
            ask("cold", [*place, epoch, 9], server=server),
            ask("deleted", [*place, epoch], server=server),
            ask("release", [*place, epoch, chance.random() < 0.5, 9, size], server=server),
        ])  # fmt: skip
        fate = chance.random()
        if fate < 0.2:
            late.append(request)
            continue
        before = store_count(state)
        answer(state, request, limits)
        if fate < 0.4:
            answer(state, request, limits)
        if isinstance(request, Open):
            assert store_count(state) <= max(before, 3)
        if late and fate < 0.6:
            answer(state, late.pop(chance.randrange(len(late))), limits)
        check_sums(state)


def check_sums(state: StateFile) -> None:
    with state.transaction():
        rows = state._connection.execute(
            """SELECT tenant, sum(kind = 1), sum(kind = 2), sum(coalesce(bytes, 0)) FROM stores
            WHERE state <> 0 GROUP BY tenant""", ()
        )  # fmt: skip
        sums = {tenant: tuple(rest) for tenant, *rest in rows}
        for tenant in ("acme", "other"):
            assert tuple(state.stores.use(tenant)) == sums.get(tenant, (0, 0, 0))


def store_count(state: StateFile) -> int:
    streams, kvs, _ = use(state)
    return streams + kvs


def test_a_file_of_an_older_version_is_counted_when_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with closing(open_state_file(path, Disk())) as state:
        run(state, records=(LIVE_A,))
        opened(state, "one", "two", limits=TenantLimits())
        answer(state, ask("open", ["acme", 2, "kv", True], ["acme", 1, "read", False]))
    older = apsw.Connection(str(path))
    for trigger in ("use_begun", "use_changed", "use_ended"):
        older.execute(f"DROP TRIGGER {trigger}")
    older.execute("DROP TABLE tenants")
    older.execute("ALTER TABLE stores DROP COLUMN bytes")
    older.close()
    with closing(open_state_file(path, Disk())) as state:
        assert use(state) == (2, 1, 0)
        answer(state, ask("created", ["acme", 1, "one", 3, 70]))
        assert use(state) == (2, 1, 70)
    # An older version that changes rows changes the sums too.
    older = apsw.Connection(str(path))
    older.execute("DELETE FROM stores WHERE name = 'one'")
    older.close()
    with closing(open_state_file(path, Disk())) as state:
        assert use(state) == (1, 1, 0)


def test_a_rate_is_shared_out_by_what_was_asked_for_and_never_given_twice() -> None:
    limits = TenantLimits({"acme": Quota(max_rate=100)})
    assert limits.asked("acme", "a", 500.0, 0.0, 1_000) == (1.0, 1.0)
    assert limits.asked("acme", "b", 0.0, 10.0, 1_000) == (0.05, pytest.approx(0.95))
    assert limits.asked("acme", "a", 500.0, 0.0, 1_500) == (pytest.approx(0.95), 0.05)
    shares = [limits.asked("acme", each, 300.0, 7.0, 2_000) for each in "abc" * 2][3:]
    assert [sum(each) for each in zip(*shares, strict=True)] == [pytest.approx(1.0)] * 2
    assert sorted(limits.reports("acme", 2_000)) == ["a", "b", "c"]
    assert limits.asked("acme", "a", 0.0, 0.0, 9_000) == (1.0, 1.0), "the others are silent"
    assert limits.reports("acme", 99_000) == {}
    assert limits.asked("acme", "a", 0.0, 0.0, 5) == (1.0, 1.0), "a clock was set back"
    assert limits.asked("none", "a", 9.0, 9.0, 9_000) == (1.0, 1.0)
    assert limits.reports("none", 9_000) == {}


def test_operators_see_what_a_tenant_uses_of_what_it_may(state: StateFile) -> None:
    limits = TenantLimits({"acme": Quota(max_stores=9, max_rate=5.5)})
    opened(state, "one", limits=limits)
    answer(state, ask("usage", ["acme", 1, "one", 1, 30], tenants=[["acme", 5.0, 9.0]]), limits)
    shown = answer(state, parse("_", "tenant", encode_control(tenant="acme")), limits)
    quota = {"max_stores": 9, "max_rate": 5.5}
    assert shown["use"] == [1, 0, 30, quota, 0, 0]
    assert shown["rates"] == [["a", 5.0, 9.0]]
    listed = answer(state, parse("_", "tenants", encode_control()), limits)
    assert (listed["tenants"], listed["use"]) == (["acme"], [[1, 0, 30, quota, 0, 0]])
    nobody = answer(state, parse("_", "tenant", encode_control(tenant="nobody")), limits)
    assert (nobody["use"], nobody["rates"]) == ([0, 0, 0, {}, 0, 0], [])


def test_each_server_hears_what_the_others_hold(state: StateFile) -> None:
    limits = TenantLimits({"acme": Quota(max_open_stores=9, max_uploads=4)})
    for server, held in (("a", [3, 1]), ("b", [2, 0])):
        told = ask("usage", tenants=[["acme", 5.0, 9.0, *held]], server=server)
        answered = answer(state, told, limits)
    assert answered["elsewhere"] == {"acme": [3, 1]}
    shown = answer(state, parse("_", "tenant", encode_control(tenant="acme")), limits)
    assert shown["use"][4:] == [5, 1]
    older = ask("usage", tenants=[["acme", 5.0, 9.0]], server="b")
    assert answer(state, older, limits)["elsewhere"] == {"acme": [3, 1]}
    info = TenantInfo.from_wire("acme", shown["use"])
    assert (info.open_stores, info.uploads) == (5, 1)
    assert TenantInfo.from_wire("acme", shown["use"][:4]).open_stores is None


@pytest.mark.parametrize(
    "tenants",
    [None, [1], [["acme"]], [["acme", -1, 0]], [["acme", "x", 0]], [["acme", 1, 0, -1, 0]],
     [["acme", 1, 0, 1.5]]],
)  # fmt: skip
def test_a_report_of_the_wrong_shape_is_refused(tenants: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        ask("usage", tenants=tenants)

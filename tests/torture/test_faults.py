"""Faults: the same seed gives the same ones, every kind comes, and a server is always left."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import pytest

from holdfast.protocol.messages import ChangeKind
from holdfast.protocol.names import StoreKind
from tests.support.checking.history import Following, History, Operation, Outcome, Store
from tests.torture.faults import (
    ROUND,
    Fault,
    FaultKind,
    PlannedFault,
    Strike,
    choose,
    strikes,
)
from tests.torture.measure import longest_pause, recoveries

SERVERS = ["s1", "s2", "s3"]
KV: Store = (int(StoreKind.KV), "k")
QUIET: Store = (int(StoreKind.KV), "quiet")


def strike(*kinds: FaultKind, pick: float = 0.0) -> Strike:
    return Strike(tuple(PlannedFault(kind, pick) for kind in kinds), 1.0)


def write(invoked_at: float, returned_at: float, outcome: Outcome = Outcome.OK) -> Operation:
    return Operation(
        "id", KV, "set", invoked_at, revisions=(1,), outcome=outcome, returned=returned_at
    )


def history_of(*writes: Operation, followings: Sequence[Following] = ()) -> History:
    history = History()
    history.operations += writes
    history.followings += followings
    return history


def test_a_seed_gives_the_same_faults_again_and_another_seed_others() -> None:
    first, again, other = (list(islice(strikes(seed), 50)) for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_every_round_has_every_kind() -> None:
    kinds = {fault.kind for one in islice(strikes(1), len(ROUND)) for fault in one.faults}
    assert kinds == set(FaultKind)


@pytest.mark.parametrize("pick", [0.0, 0.5, 0.999])
def test_two_faults_at_once_hit_different_servers_and_leave_one(pick: float) -> None:
    both = strike(FaultKind.KILL, FaultKind.PAUSE, pick=pick)
    chosen = choose(both, SERVERS, 3)
    assert chosen is not None
    assert len(set(chosen)) == 2
    assert set(chosen) < set(SERVERS)


def test_no_fault_hits_the_last_server_that_is_well() -> None:
    assert choose(strike(FaultKind.KILL), ["s1"], 3) is None
    assert choose(strike(FaultKind.KILL, FaultKind.KILL), ["s1", "s2"], 3) is None
    assert choose(strike(FaultKind.NATS, FaultKind.COORDINATOR), [], 3) == ["", ""]


def test_a_kill_alone_waits_until_all_is_well() -> None:
    assert choose(strike(FaultKind.KILL), ["s1", "s2"], 3) is None
    assert choose(strike(FaultKind.PAUSE), ["s1", "s2"], 3) == ["s1"]
    assert choose(strike(FaultKind.KILL), SERVERS, 3) == ["s1"]


def test_a_pause_is_the_time_without_an_ack_while_somebody_waited() -> None:
    writes = [write(0.0, 0.1), write(5.0, 5.1), write(6.0, 8.0), write(6.5, 8.1)]
    assert longest_pause("kv:k", writes).seconds == pytest.approx(2.0)


def test_a_write_that_was_given_up_counts_as_waiting() -> None:
    writes = [write(0.0, 0.1), write(1.0, 3.0, Outcome.UNKNOWN), write(2.9, 4.0)]
    assert longest_pause("kv:k", writes).seconds == pytest.approx(3.0)


def test_recovery_is_measured_by_writes_that_began_after_a_kill_alone() -> None:
    history = history_of(write(9.9, 10.05), write(10.1, 10.6), write(10.2, 10.4))
    kill = Fault(FaultKind.KILL, "s1", 10.0, 10.0, (KV, QUIET))
    [recovery] = recoveries(history, [kill])
    assert recovery.seconds == pytest.approx(0.4)
    pause = Fault(FaultKind.PAUSE, "s2", 3.0, 8.0)
    assert recoveries(history, [pause, kill]) == []


def test_followers_have_recovered_when_the_last_of_them_was_told_of_the_first_ack() -> None:
    def following(id: str, *told: tuple[int, float]) -> Following:
        return Following(
            id,
            KV,
            changes=[(ChangeKind.SET, revision, None) for revision, _ in told],
            told_at=[at for _, at in told],
        )

    first = write(10.2, 10.4)
    first.revisions = (7,)
    later = following("f3-1", (9, 10.5))
    early = [following("f1-1", (6, 9.0), (7, 10.6)), following("f2-1", (6, 9.1), (8, 11.0))]
    kill = Fault(FaultKind.KILL, "s1", 10.0, 10.0, (KV,))
    [recovery] = recoveries(history_of(first, followings=[*early, later]), [kill])
    assert recovery.heard_seconds == pytest.approx(1.0)

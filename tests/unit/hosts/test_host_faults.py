"""The faults of hosts and what is made of them: drawn from a seed, and measured from a history."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from holdfast.protocol.names import StoreKind
from tests.hosts import needs
from tests.hosts.__main__ import main
from tests.hosts.cluster import HOSTS, Fencing
from tests.hosts.faults import HostFault, plan
from tests.hosts.measure import costs, host_of, zombie_answers
from tests.hosts.tormentor import Cut
from tests.support.checking.history import History, Operation, Outcome, Store
from tests.torture.faults import Fault

KV: Store = (int(StoreKind.KV), "k")
SERVERS = dict(zip(("s1", "s2", "s3"), HOSTS, strict=True))
H1, H2, _ = HOSTS
FENCED = Fencing("s1", "i1", "silent for 2.6 s", 3.0)


def write(client: str, invoked_at: float, returned_at: float) -> Operation:
    return Operation(
        client, KV, "set", invoked_at, revisions=(1,), outcome=Outcome.OK, returned=returned_at
    )


def history_of(*writes: Operation) -> History:
    history = History()
    history.operations += writes
    return history


def test_a_seed_gives_the_same_faults_again_and_every_round_has_every_kind() -> None:
    kinds = list(HostFault)
    first, again, other = (list(islice(plan(seed, kinds), 50)) for seed in (7, 7, 8))
    assert first == again
    assert first != other
    assert {fault.kind for fault in first[: len(kinds)]} == set(kinds)


def test_what_lasts_is_longer_than_the_silence_that_fences() -> None:
    lasting = {fault.kind for fault in islice(plan(1, list(HostFault)), 50) if fault.seconds > 2.5}
    assert lasting >= {HostFault.HOST_WITHOUT_NATS, HostFault.SPLIT, HostFault.MOUNT_STOPPED}


def test_a_client_tells_its_host_by_its_name() -> None:
    assert host_of(write("keeper.h2-17", 0, 1)) == "h2"
    assert host_of(write("restless-17", 0, 1)) == ""


@pytest.mark.parametrize(
    ("client", "invoked_at", "returned_at", "is_zombie"),
    [
        ("keeper.h1-1", 3.1, 3.2, True),
        # It may have left the server before the fence.
        ("keeper.h1-1", 2.9, 3.2, False),
        # Another server may have answered: the host was joined again.
        ("keeper.h1-1", 3.1, 6.1, False),
        # Another server has answered: this host was not cut off.
        ("keeper.h2-1", 3.1, 3.2, False),
    ],
)
def test_an_answer_to_what_began_after_the_fence_is_a_zombies(
    client: str, invoked_at: float, returned_at: float, is_zombie: bool
) -> None:
    history = history_of(write(client, invoked_at, returned_at))
    found = zombie_answers(history, [Cut(H1, 0.0, 6.0)], [FENCED], SERVERS)
    assert bool(found) is is_zombie
    assert zombie_answers(history, [Cut(H2, 0.0, 6.0)], [FENCED], SERVERS) == []


def test_a_fault_costs_pauses_there_and_elsewhere_and_the_lives_until_the_next_fault() -> None:
    history = history_of(
        write("keeper.h1-1", 0.5, 0.6),
        write("keeper.h1-2", 1.0, 7.0),
        write("keeper.h2-1", 0.5, 0.6),
        write("keeper.h2-2", 1.5, 4.0),
        write("keeper.h2-3", 21.0, 22.0),
    )
    faults = [
        Fault(HostFault.HOST_WITHOUT_NATS, "h1, with the coordinator", 1.0, 6.0),
        Fault(HostFault.KILL, "s3", 20.0, 20.0),
    ]
    cut, kill = costs(history, faults, [FENCED], HOSTS)
    assert (cut.there_seconds, cut.elsewhere_seconds, cut.fenced) == (6.0, 2.5, (FENCED,))
    assert (kill.there_seconds, kill.elsewhere_seconds, kill.fenced) == (0.0, 1.0, ())


def test_a_fault_that_the_file_system_cannot_have_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--fs", "local", "--faults", "mount-stopped"])
    assert ended.value.code == 2
    assert "with --fs local there is no fault 'mount-stopped'" in capsys.readouterr().err


def test_it_is_skipped_with_a_word_where_something_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert main(["--fs", "glusterfs"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("skipped: ")
    assert "no program glusterd (Debian: apt install glusterfs-server)" in said


def test_faults_that_the_machine_cannot_have_are_told_with_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(needs, "TUN", Path("/nonexistent"))
    kinds = [HostFault.KILL, HostFault.LOSS, HostFault.DELAY]
    assert needs.impossible(kinds) == {
        HostFault.LOSS: "there is no /nonexistent, so no packets can be delayed or lost",
        HostFault.DELAY: "there is no /nonexistent, so no packets can be delayed or lost",
    }
    assert needs.impossible([HostFault.KILL]) == {}

"""The verdict notices each thing that must not be, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.protocol import frames
from tests.hostile.verdict import LONGEST_PAUSE_SECONDS, judge
from tests.hostile.watch import Evidence, is_of_operators, is_of_the_cluster
from tests.support.raw_nats import Arrived
from tests.torture.measure import Pause

WELL = [Pause("stream:torture.s0", 0.5, 1.0)]


def evidence() -> Evidence:
    return Evidence(
        pids={"s1": 1, "s2": 2}, incarnations={"s1": {"a"}, "s2": {"b"}}, machine_late_seconds=0.1
    )


def test_a_run_without_harm_is_well() -> None:
    assert judge(evidence(), WELL, {}) == []


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda found: found.ended.append("s1 was restarted once"), "a process ended: s1"),
        (lambda found: found.incarnations["s2"].add("c"), "another life: s2 was b, c"),
        (lambda found: found.incarnations.clear(), "nothing was seen"),
        (lambda found: found.states.add(("s1", "draining")), "s1 was said to be draining"),
        (lambda found: found.leaks.append("b'a value'"), "readable by a stranger"),
        (lambda found: found.misdirected.append("b'_INBOX.victim.1'"), "came unasked"),
        (lambda found: setattr(found, "misdirected_count", 9), "9 messages in all"),
    ],
)
def test_each_harm_is_noticed(harm: Callable[[Evidence], None], said: str) -> None:
    found = evidence()
    harm(found)
    [wrong] = judge(found, WELL, {})
    assert said in wrong


def test_a_pause_beyond_a_takeovers_is_noticed() -> None:
    long = Pause("kv:torture.k1", LONGEST_PAUSE_SECONDS + 1, 30.0)
    [wrong] = judge(evidence(), [long, *WELL], {})
    assert "kv:torture.k1 waited" in wrong
    assert judge(evidence(), [], {}) == ["the other tenant was never answered"]


def test_an_exception_in_a_log_is_noticed() -> None:
    [wrong] = judge(evidence(), WELL, {"c1": 2})
    assert "2 in the log of c1" in wrong


def test_what_the_cluster_says_is_told_from_what_was_sent_there() -> None:
    def is_its_own(subject: bytes, payload: bytes) -> bool:
        return is_of_the_cluster(Arrived(subject, b"", b"", payload))

    beat = frames.encode_control(server="s1", incarnation="a", state="running")
    probe = frames.encode_control(command="probe", term=1)
    opening = frames.encode_control(server="s1", incarnation="a", stores=[])
    answer = frames.encode_control(term=1, owners=[])
    assert is_its_own(b"hf._.hb", beat)
    assert is_its_own(b"hf._.ctl.s1", probe)
    assert is_its_own(b"hf._.coord.open", opening)
    assert is_its_own(b"hf._.audit", frames.encode_control(events=[]))
    assert not is_its_own(b"hf._.audit", answer)
    assert not is_its_own(b"hf._.ops.s1", probe)
    for subject in (b"hf._.hb", b"hf._.ctl.s1", b"hf._.coord.release", b"hf._.ops.s1"):
        assert not is_its_own(subject, answer)
        assert not is_its_own(subject, frames.encode([]))
        assert not is_its_own(subject, b"\xff")


def test_what_an_operator_may_say_is_told_from_what_others_may_not() -> None:
    for subject in (b"hf._.coord.tenants", b"hf._.srv.s1.abc", b"hf._.coord.drain.abc"):
        assert is_of_operators(subject)
    for subject in (b"hf._.hb", b"hf._.coord.drain", b"hf._.ops.s1", b"hf._.own.s1.acme"):
        assert not is_of_operators(subject)

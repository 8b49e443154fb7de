"""What a probe's measurements mean: each failure, and what would mend it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.shared_fs.inspection.probe_peer import Way
from holdfast.shared_fs.inspection.probe_verdicts import (
    LockTrial,
    Measured,
    Need,
    ProbedMount,
    Sights,
    Verdict,
    judge,
    needs_are_met,
    percentile,
    worst,
)


def mount(kind: str, device: int, *, direct: bool = True) -> ProbedMount:
    return ProbedMount("/mnt/a", kind, "/mnt/a", kind == "ext4", device, True, direct)


def good(kind: str = "fuse.glusterfs") -> Measured:
    """Two mounts that do all that holdfast needs."""
    return Measured(
        mounts=(mount(kind, 1), mount(kind, 2)),
        locks=[LockTrial(True, True, True, True, 20, 0)] * 2,
        freed_ms=[6.0, 7.0],
        sights=[Sights(way, True, True, 50, write_ms=(1.5,) * 50) for way in Way]
        + [Sights(Way.OVERWRITE, False, False, 50)],
        exclusive_creation=[True, True],
        long_names=["", ""],
        links=["", ""],
        truncation=[True, True],
        sync_ms=[1.0] * 100,
        write_ms=[2.0] * 100,
    )


def sees(
    way: Way, *, direct: bool = True, used: bool = True, **found: object
) -> Callable[..., None]:
    """Replace what was seen of one kind of change."""

    def change(measured: Measured) -> None:
        sights = Sights(way, direct, used, 50, **{"write_ms": (1.5,) * 50, **found})  # type: ignore[arg-type]
        measured.sights = [one for one in measured.sights if (one.way, one.used) != (way, used)] + [
            sights
        ]

    return change


def locks(*trial: object) -> Callable[[Measured], None]:
    return lambda measured: measured.locks.append(LockTrial(*trial))  # type: ignore[arg-type]


def of_kind(kind: str) -> Callable[[Measured], None]:
    return lambda measured: setattr(measured, "mounts", (mount(kind, 1), mount(kind, 2)))


def one_mount(measured: Measured) -> None:
    measured.mounts = (mount("nfs4", 1), mount("nfs4", 1))


STALE = {"late_ms": (900.0,)}

CASES: list[tuple[Callable[[Measured], None], Need, Verdict, str]] = [
    (one_mount, Need.TWO_MOUNTS, Verdict.WARNING, "nfs4: one mount shows no cache"),
    (
        locks(False, True, True, True, 20, 20),
        Need.EXCLUSIVE_LOCK,
        Verdict.FAILED,
        "two processes",
    ),
    (
        locks(True, True, True, True, 20, 3),
        Need.EXCLUSIVE_LOCK,
        Verdict.FAILED,
        "3 of 60 races",
    ),
    (locks(True, True, True, False, 20, 0), Need.EXCLUSIVE_LOCK, Verdict.FAILED, "is refused"),
    (locks(True, False, True, True, 20, 0), Need.SEEN_LOCK, Verdict.FAILED, "not see it held"),
    (locks(True, True, False, True, 20, 0), Need.SEEN_LOCK, Verdict.FAILED, "not see it free"),
    (lambda m: m.freed_ms.append(None), Need.FREED_LOCK, Verdict.FAILED, "still held"),
    (lambda m: m.freed_ms.append(1500.0), Need.FREED_LOCK, Verdict.SLOW, "after 1.5 s"),
    (sees(Way.OVERWRITE, **STALE), Need.FENCE, Verdict.FAILED, "1 of 50 stale, by 900 ms"),
    (sees(Way.OVERWRITE, never_count=2), Need.FENCE, Verdict.FAILED, "2 of 50 never seen"),
    (
        sees(Way.OVERWRITE, direct=False, used=False, never_count=7),
        *(Need.OTHER_FENCE, Verdict.WARNING, "plain: 7 of 50 never seen"),
    ),
    (sees(Way.APPEND, **STALE), Need.LOG, Verdict.SLOW, "1 of 50 stale, by 900 ms"),
    (sees(Way.APPEND, direct=False, **STALE), Need.LOG, Verdict.SLOW, "1 of 50 stale"),
    (sees(Way.APPEND, late_ms=(9900.0,)), Need.LOG, Verdict.SLOW, "stale, by 9.9 s"),
    (sees(Way.APPEND, late_ms=(11000.0,)), Need.LOG, Verdict.FAILED, "stale, by 11.0 s"),
    (sees(Way.CREATE, never_count=1), Need.CREATED, Verdict.FAILED, "never seen"),
    (sees(Way.REMOVE, late_ms=(2000.0,)), Need.REMOVED, Verdict.FAILED, "stale, by 2.0 s"),
    (
        sees(Way.REPLACE, never_count=1, stale_handles=12),
        *(Need.REPLACED, Verdict.FAILED, "1 of 50 never seen; 12 ESTALE"),
    ),
    (
        lambda m: m.exclusive_creation.append(False),
        *(Need.EXCLUSIVE_CREATION, Verdict.FAILED, "two created one file"),
    ),
    (
        lambda m: m.long_names.append("File name too long"),
        *(Need.LONG_NAMES, Verdict.FAILED, "File name too long"),
    ),
    (
        lambda m: m.links.append("Operation not supported"),
        *(Need.LINKS, Verdict.WARNING, "Operation not supported"),
    ),
    (lambda m: m.truncation.append(False), Need.TRUNCATION, Verdict.FAILED, "the old end"),
    (lambda m: m.sync_ms.extend([30.0] * 101), Need.SYNC, Verdict.SLOW, "median 30 ms"),
    (lambda m: m.write_ms.extend([5000.0] * 3), Need.WRITE, Verdict.SLOW, "p99 5.0 s"),
    (
        sees(Way.OVERWRITE, write_ms=(5000.0,) * 3),
        *(Need.CONTESTED_WRITE, Verdict.SLOW, "median 5.0 s"),
    ),
    (of_kind("fuse.mfs"), Need.DISK, Verdict.WARNING, "fsync reaches no disk"),
    (of_kind("tmpfs"), Need.DISK, Verdict.WARNING, "in memory alone"),
]


@pytest.mark.parametrize(("change", "need", "outcome", "found"), CASES)
def test_each_failure_has_a_verdict_of_its_own_and_what_would_mend_it(
    change: Callable[[Measured], None], need: Need, outcome: Verdict, found: str
) -> None:
    measured = good()
    change(measured)
    findings = judge(measured)
    [wrong] = [one for one in findings if one.outcome not in (Verdict.OK, Verdict.SKIPPED)]
    assert (wrong.need, wrong.outcome) == (need, outcome)
    assert found in wrong.found
    assert wrong.mend
    assert needs_are_met(findings) == (outcome is not Verdict.FAILED)
    assert worst(findings) is outcome


def test_a_mount_that_does_it_all_meets_each_need_once() -> None:
    findings = judge(good())
    assert [one.need for one in findings] == list(Need)
    assert {one.outcome for one in findings[:-1]} == {Verdict.OK}
    assert worst(findings) is Verdict.OK and needs_are_met(findings)


#: What no process has to do for its verdict.
NOT_TRIED = (Need.TWO_MOUNTS, Need.OTHER_FENCE, Need.DISK)


@pytest.mark.parametrize("need", [need for need in Need if need not in NOT_TRIED])
def test_what_could_not_be_measured_has_failed_and_no_option_is_blamed(need: Need) -> None:
    measured = good()
    measured.broken[need] = "Input/output error"
    [finding] = [one for one in judge(measured) if one.need is need]
    assert (finding.outcome, finding.found) == (Verdict.FAILED, "Input/output error")
    assert "why the mount refuses or hangs" in finding.mend
    assert "--fopen-keep-cache" not in finding.mend


def test_nothing_at_all_could_be_measured() -> None:
    measured = Measured(mounts=good().mounts, broken=dict.fromkeys(Need, "it hangs"))
    failed = {one.need for one in judge(measured) if one.outcome is Verdict.FAILED}
    assert failed == set(Need).difference(NOT_TRIED)


@pytest.mark.parametrize(
    ("kind", "mend"),
    [
        ("fuse.glusterfs", "--fopen-keep-cache=false"),
        ("fuse.ceph-fuse", "--fuse_disable_pagecache=true"),
        ("nfs4", "nocto"),
        ("fuse.other", "turn off what the mount caches"),
    ],
)
def test_a_cache_is_mended_by_the_options_of_its_file_system(kind: str, mend: str) -> None:
    measured = good(kind)
    sees(Way.OVERWRITE, never_count=1)(measured)
    [fence] = [one for one in judge(measured) if one.need is Need.FENCE]
    assert mend in fence.mend


def test_without_direct_reads_there_is_no_other_way_to_read_a_fence() -> None:
    measured = good()
    measured.sights = [one for one in measured.sights if one.used]
    [other] = [one for one in judge(measured) if one.need is Need.OTHER_FENCE]
    assert other.outcome is Verdict.SKIPPED


def test_a_percentile_is_a_value_that_was_measured() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile(list(map(float, range(1, 101))), 0.99) == 99.0
    assert percentile([7.0], 0.99) == 7.0

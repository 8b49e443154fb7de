"""A copied configuration: a second cluster is given the bucket of the first one."""

from __future__ import annotations

from pathlib import Path

from tests.support.cluster import Process, running_processes


def refusal(process: Process) -> str:
    """Return what a part said at its end, which is a failure."""
    assert process.wait() == 1
    return process.log


def test_no_part_of_a_cluster_starts_with_the_bucket_of_another_one(tmp_path: Path) -> None:
    """Its stores would be published over those of the same names, and their snapshots removed."""
    bucket = ("--bucket", f"file://{tmp_path / 'bucket'}")
    stray = tmp_path / "stray"
    with running_processes(tmp_path) as processes:
        owner = processes.start_persist("s1", *bucket)
        owner.wait_for_log("server.started")
        mine = ("--prefix", "stray")
        assert "belongs to cluster" in refusal(
            processes.start("coordinator", "c2", *bucket, *mine, data=stray)
        )
        processes.start("coordinator", "c3", *mine, data=stray)
        assert "belongs to cluster" in refusal(
            processes.start_persist("s2", *bucket, *mine, data=stray)
        )
        assert owner.running

"""Forks of stores that real servers keep: what they share, and that they outlive their parents."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from holdfast.client import InvalidArgumentError
from holdfast.shared_fs.bucket.bucket import open_bucket
from tests.integration.test_backup_restore import BOTH, TENANT, running_scene
from tests.support.present import present

COUNT = 120


@BOTH
async def test_a_fork_shares_a_snapshot_and_outlives_its_parent(
    tmp_path: Path, local: bool
) -> None:
    values = [os.urandom(1000) for _ in range(COUNT)]
    async with running_scene(tmp_path, local=local) as scene, scene.client() as client:
        bucket = open_bucket(scene.bucket)
        parent, fork, whole = map(client.stream, ("parent", "fork", "whole"))
        await parent.append_many(values)

        made = await parent.fork("fork", seq=100)
        assert (made.last_seq, made.shared) == (100, True)
        before = {each.key: each.size_bytes for each in bucket.list("snapshots/")}
        assert (await parent.fork("whole")).shared
        assert {each.key: each.size_bytes for each in bucket.list("snapshots/")} == before
        with pytest.raises(InvalidArgumentError, match="exists"):
            await parent.fork("fork")

        assert [each.value async for each in fork.get_all()] == values[:100]
        assert (await fork.append(b"mine")).seq == 101
        assert (await parent.append(b"theirs")).seq == COUNT + 1
        await parent.destroy()
        # It was cold until now.
        assert [each.value async for each in whole.get_all()] == values
        assert present(await fork.get(101)).value == b"mine"
        bucket.close()


async def test_a_purge_reaches_forks_and_what_they_share(tmp_path: Path) -> None:
    values = [os.urandom(1000) for _ in range(COUNT)]
    # The tenant's snapshots are in a bucket of its own.
    running = running_scene(tmp_path, own_bucket=True)
    async with running as scene, scene.client() as client:
        bucket = open_bucket(f"file://{tmp_path / 'own'}")
        fork, copy = client.stream("fork"), client.stream("copy")
        await client.stream("parent").append_many(values)
        report = await scene.json("fork", "parent", "fork")
        assert (report["last_seq"], report["shared"]) == (COUNT, True)
        await fork.fork("copy")
        deleted = await scene.json("delete", "parent", "--yes")
        assert deleted["forks"] == ["copy", "fork"]
        assert list(bucket.list(f"snapshots/{TENANT}/parent.stream/"))
        [held] = [row for row in deleted["remains"] if row["place"].endswith("share")]
        assert held["count"] == 1

        command = ("purge", "fork", "--seq", "5", "--with-forks", "--yes")
        purged = await asyncio.to_thread(scene.holdfast, *command)
        assert purged.returncode == 0, purged.stdout.decode() + scene.logs()
        assert json.loads(purged.stdout)["forks"] == ["copy"]
        assert not list(bucket.list(f"snapshots/{TENANT}/parent.stream/"))
        for each in (fork, copy):
            assert await each.get(5) is None
            assert present(await each.get(6)).value == values[5]
        bucket.close()

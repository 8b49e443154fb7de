"""Forks of stores that real servers keep: what they share, and that they outlive their parents."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from holdfast.client import InvalidArgumentError
from holdfast.shared_fs.bucket.bucket import open_bucket
from tests.integration.test_backup_restore import TENANT, running_scene
from tests.support.present import present

COUNT = 120


@pytest.mark.parametrize("local", [False, True], ids=["shared", "local"])
async def test_a_fork_shares_a_snapshot_and_outlives_its_parent(
    tmp_path: Path, local: bool
) -> None:
    values = [os.urandom(1000) for _ in range(COUNT)]
    async with running_scene(tmp_path, local=local) as scene, scene.client() as client:
        for name in ("s1", "s2"):
            scene.start(name)
        bucket = open_bucket(scene.bucket)
        parent, settings = client.stream("parent"), client.kv("settings")
        await parent.append_many(values)
        await settings.set("theme", b"dark")

        assert (await scene.json("backup", "parent"))["backups"]
        before = {each.key: each.size_bytes for each in bucket.list("snapshots/")}
        made = await parent.fork("fork", seq=100)
        assert (made.last_seq, made.shared) == (100, True)
        again = await scene.json("fork", "parent", "whole")
        assert (again["last_seq"], again["shared"]) == (COUNT, True)
        assert {each.key: each.size_bytes for each in bucket.list("snapshots/")} == before
        with pytest.raises(InvalidArgumentError, match="exists"):
            await parent.fork("fork")
        await settings.fork("trial")

        fork = client.stream("fork")
        assert [each.value async for each in fork.get_all()] == values[:100]
        assert (await fork.append(b"mine")).seq == 101
        assert (await parent.append(b"theirs")).seq == COUNT + 1

        deleted = await scene.json("delete", "parent", "--yes")
        assert deleted["forks"] == ["fork", "whole"]
        [held] = [row for row in deleted["remains"] if row["place"].endswith("share")]
        assert held["count"] == 1
        # It was cold until now.
        whole = client.stream("whole")
        assert [each.value async for each in whole.get_all()] == values
        assert present(await fork.get(101)).value == b"mine"
        assert present(await client.kv("trial").get("theme")).value == b"dark"

        # What nobody needs any more goes, and a purge reaches the forks of forks.
        await fork.destroy()
        await whole.fork("copy")
        purged = await asyncio.to_thread(
            scene.holdfast, "purge", "whole", "--seq", "5", "--with-forks", "--yes"
        )
        assert purged.returncode == 0, purged.stdout.decode() + scene.logs()
        assert json.loads(purged.stdout)["forks"] == ["copy"]
        assert not list(bucket.list(f"snapshots/{TENANT}/parent.stream/"))
        for each in (whole, client.stream("copy")):
            assert await each.get(5) is None
            assert present(await each.get(6)).value == values[5]
        bucket.close()

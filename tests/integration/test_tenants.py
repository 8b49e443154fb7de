"""A tenant that is destroyed leaves nothing that it wrote, and no other tenant notices."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from holdfast.client import connect
from holdfast.protocol.names import SYSTEM_TENANT
from tests.integration.test_backup_restore import BOTH, Scene, running_scene, values
from tests.support.waiting import eventually

#: Random, so that compression keeps it as it is.
SECRET = bytes.fromhex("8f1d0e7a5bc3964278ab31d9e6f0c25474d8a19b03e7f6c5")


def files_with_the_secret(*folders: Path) -> list[Path]:
    return [
        path
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and SECRET in path.read_bytes()
    ]


async def remains(scene: Scene) -> dict[str, Any]:
    places = ["--bucket", scene.bucket]
    if not scene.local:
        places += ["--data", str(scene.processes.data)]
    result = await asyncio.to_thread(scene.holdfast, "tenant", "remains", "acme", *places)
    found: dict[str, Any] = json.loads(result.stdout)
    assert result.returncode == (0 if found["gone"] else 1), result.stderr
    return found


@BOTH
async def test_a_destroyed_tenant_leaves_nothing_and_no_other_one_notices(
    tmp_path: Path, local: bool
) -> None:
    """Without a shared file system, the tenant has a bucket of its own."""
    async with running_scene(tmp_path, local=local, own_bucket=local) as scene:
        folders = (
            *(scene.processes.data, tmp_path / "disk-s1"),
            *(tmp_path / "bucket", tmp_path / "own"),
        )
        other = connect(scene.processes.nats.url, tenant="other", timeout_seconds=30)
        async with scene.client() as client, other as untouched:
            for name in ("notes", "chat"):
                # The first snapshots share a pack, and are replaced later.
                await client.stream(name).append(SECRET)
                await untouched.stream(name).append(b"stay")
            await client.kv("settings").set("secret", SECRET)
            for _ in range(2):
                await scene.json("backup", "--all-tenants")
                await client.stream("notes").append(SECRET)
            assert files_with_the_secret(*folders)
            before = await remains(scene)
            assert not before["gone"]
            where = {row["place"]: row["example"] for row in before["remains"]}
            found = [where[place] for place in ("snapshots", "packs") if place in where]
            assert found
            assert all(key.startswith("places/acme/1/") == local for key in found)
        place = ("--bucket", scene.bucket) if local else ("--data", str(scene.processes.data))
        await scene.json("tenant", "set", "acme", "--max-stores", "9", *place)
        assert "quota" in {row["place"] for row in (await remains(scene))["remains"]}
        report = await scene.json("tenant", "destroy", "acme", "--yes", *place)
        assert (report["stores"], report["quota"]) == (3, "removed")
        assert await scene.json("tenant", "destroy", "acme", "--yes", *place) == {
            **report,
            **dict.fromkeys(("stores", "files", "snapshots"), 0),
            "quota": "none",
        }
        assert (await scene.json("stores"))["stores"] == []

        async def is_recorded() -> bool:
            rows = (await scene.json("audit", "--action", "store.backed_up"))["events"]
            return sum(row["count"] for row in rows) == 10

        # What the audit log has is in the same log, which goes once all of it has a snapshot.
        await eventually(is_recorded, "both backups of five stores are recorded")
        rows = (await scene.json("audit"))["events"]
        actions = [row["action"] for row in rows]
        assert (actions.count("store.deleted"), actions.count("tenant.destroyed")) == (3, 2)
        # In an open cluster the command says who runs it.
        assert all((row["mode"], row["token"]) == ("open", "") for row in rows)
        assert all(row["user"] for row in rows if row["action"].startswith(("store.", "tenant.")))
        await scene.json("--tenant", SYSTEM_TENANT, "backup", "audit")
        # A new life of the server begins with a new log; the collector removes the rest.
        assert scene.servers["s1"].stop() == 0
        scene.start("s1")
        async with connect(scene.processes.nats.url, tenant="other") as untouched:
            for name in ("notes", "chat"):
                assert await values(untouched, name) == ["stay"]
            collect = ("collect", "--bucket", scene.bucket, "--min-age-hours", "0", "--thorough")
            for _ in range(3):
                await scene.json(*collect)
            after = await remains(scene)
            assert after["gone"], after
            assert {row["place"] for row in after["remains"]} == {"tombstones"}
            assert files_with_the_secret(*folders) == []
            for name in ("notes", "chat"):
                assert await values(untouched, name) == ["stay"]
        assert scene.servers["s1"].stop() == 0
        verified = ("verify", "--all-tenants", "--bucket", scene.bucket)
        tenants = {row["tenant"] for row in (await scene.json(*verified))["stores"]}
        assert tenants == {"other", SYSTEM_TENANT}


async def test_a_tenant_that_is_still_written_to_is_not_called_destroyed(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene, scene.client() as client:

        async def write() -> None:
            number = 0
            while True:
                await client.stream(f"notes-{number}").append(b"x")
                number += 1

        await client.stream("notes").append(b"x")
        writing = asyncio.create_task(write())
        try:
            error = await scene.error("tenant", "destroy", "acme", "--yes")
        finally:
            writing.cancel()
        assert error["error"] == "tenant_in_use"

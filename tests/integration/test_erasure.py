"""What `delete` leaves is named, and what `purge` erases is nowhere in the raw bytes."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import boto3

from holdfast.client import connect
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.archive.table_location import TableLocation, default_table
from tests.integration.test_backup_restore import BOTH, Scene, running_scene, values
from tests.spark.test_table_erasure import export as export_rows
from tests.spark.test_table_erasure import row as table_row
from tests.support.cluster import running_processes
from tests.support.holdfast_up import started_holdfast
from tests.support.moto_server import BUCKET, REGION, running_moto
from tests.support.present import present
from tests.support.raw_search import files_with, objects_with

NOTES = StoreId("acme", StoreKind.STREAM, "notes")
#: Random, so that nothing else has it.
SECRET = bytes.fromhex("51b0cc7de9a4187f2d6603fa94e85b1a70c2f33e")


@BOTH
async def test_delete_names_each_place_that_still_has_the_store(
    tmp_path: Path, local: bool
) -> None:
    async with running_scene(tmp_path, local=local) as scene, scene.client() as client:
        folders = (tmp_path / "bucket", scene.processes.data, tmp_path / "disk-s1")
        await client.stream("notes").append(SECRET)
        await client.stream("other").append(b"stays")
        # Tiny snapshots of one pass share a pack, with this one in it.
        await scene.json("backup", "notes", "other")
        table = tmp_path / "bucket" / "tables" / "changes" / "tenant=acme" / "date=2026-01-01"
        table.mkdir(parents=True)
        (table / "rows.parquet").write_bytes(b"rows")
        report = await scene.json("delete", "notes", "--yes")
        left = {row["place"]: row for row in report["remains"]}
        log = "logs in the bucket" if local else "commit logs"
        assert {name for name, row in left.items() if row["holds_values"]} == {log, "tables"}
        # The searches agree: nothing has the value that the report does not name.
        found = files_with(SECRET, *folders)
        assert found
        assert all(path.name.endswith(".log") or "log" in path.parts for path in found)
        assert all("purge" in left[name]["removed_by"] for name in (log, "tables"))


async def everywhere(scene: Scene, tmp_path: Path) -> list[Path]:
    """Return the files of the cluster and the bucket that have the secret."""
    disks = sorted(tmp_path.glob("disk-*"))
    return await asyncio.to_thread(
        files_with, SECRET, tmp_path / "bucket", scene.processes.data, *disks
    )


async def purged(scene: Scene, *arguments: str) -> Any:
    """Purge, and return the last report. A live server keeps the objects of its log in the bucket
    for some seconds; its next life has them removed at once."""
    result = await asyncio.to_thread(
        scene.holdfast, "purge", *arguments, "--yes", "--wait-seconds", "0"
    )
    report = json.loads(result.stdout)
    assert result.returncode == (0 if report["complete"] else 1)
    left = {row["place"] for row in report["remains"] if row["holds_values"]}
    assert left <= {"logs in the bucket"}
    if not left:
        return report
    assert scene.servers["s1"].stop() == 0
    scene.start("s1")
    epoch = str(report["epoch"])
    kind = report["kind"]
    return await scene.json("purge", arguments[0], "--kind", kind, "--epoch", epoch, "--yes")


async def recorded_purges(scene: Scene, *stores: str) -> list[Any]:
    """Return what the audit log has of purges, once that is of these stores. A server tells it
    beside its work, so what it has just done may not be there yet."""
    async with asyncio.timeout(30):
        while True:
            rows: list[Any] = (await scene.json("audit", "--action", "store.purged"))["events"]
            if {row["store"] for row in rows} == set(stores):
                return rows
            await asyncio.sleep(0.1)


@BOTH
async def test_a_purged_store_is_nowhere_and_its_neighbours_stay(
    tmp_path: Path, local: bool
) -> None:
    async with running_scene(tmp_path, local=local) as scene, scene.client() as client:
        for _ in range(2):
            # Two snapshots each, the first of which is dropped from no manifest yet.
            await client.stream("notes").append(SECRET)
            await client.stream("other").append(b"stays")
            await scene.json("backup", "--all")
        await client.stream("notes").append(SECRET, durability="stored")
        assert len(await everywhere(scene, tmp_path)) >= 3
        report = await purged(scene, "notes")
        assert report["complete"], report
        assert await everywhere(scene, tmp_path) == []
        assert report["looked_at"]["commit logs" if not local else "logs in the bucket"]
        assert await values(client, "other") == ["stays", "stays"]
        # Again: nothing is left to do, and what came since stays.
        again = await scene.json("purge", "notes", "--yes")
        assert (again["complete"], again["epoch"]) == (True, report["epoch"])
        await client.stream("notes").append(b"new")
        assert (await scene.json("purge", "notes", "--epoch", str(report["epoch"]), "--yes"))[
            "complete"
        ]
        assert await values(client, "notes") == ["new"]
        if local:
            return
        # A copy that comes back, as from a snapshot of the file system, is found, and goes.
        scene.processes.layout.store(NOTES).write_bytes(SECRET)
        assert len(await everywhere(scene, tmp_path)) == 1
        last = await scene.json("purge", "notes", "--epoch", str(report["epoch"]), "--yes")
        assert (last["removed"]["files"], last["complete"]) == (1, True)
        assert await everywhere(scene, tmp_path) == []
        assert await values(client, "notes") == ["new"]


@BOTH
async def test_a_purged_key_and_message_are_nowhere_and_the_rest_of_the_store_goes_on(
    tmp_path: Path, local: bool
) -> None:
    async with running_scene(tmp_path, local=local) as scene, scene.client() as client:
        settings, notes = client.kv("settings"), client.stream("notes")
        await settings.set("email", SECRET)
        await settings.set("theme", b"dark")
        await notes.append(b"one")
        await notes.append(SECRET, msg_id="an-id")
        await scene.json("backup", "--all")
        await settings.set("email", SECRET + b"2")
        await notes.append(b"three")
        # Overwritten and deleted values are in the log, and in free pages.
        await settings.delete("email")
        first = await purged(scene, "settings", "--key", "email")
        second = await purged(scene, "notes", "--seq", "2")
        assert (first["complete"], second["complete"]) == (True, True), (first, second)
        assert await everywhere(scene, tmp_path) == []
        assert present(await settings.get("theme")).value == b"dark"
        assert await values(client, "notes") == ["one", "three"]
        ack = await notes.append(b"four")
        assert ack.seq == 4
        # A snapshot of the rest is there, and is what the next owner may need.
        [kept] = (await scene.json("backups", "notes"))["backups"]
        assert kept["revision"] < ack.revision
        rows = await recorded_purges(scene, "kv settings", "stream notes")
        assert all("email" not in json.dumps(row) for row in rows)
        scene.servers["s1"].kill()
        scene.start("s2")
        assert await values(client, "notes") == ["one", "three", "four"]
        assert await recorded_purges(scene, "kv settings", "stream notes") == rows


async def test_a_purge_goes_on_after_kills_of_the_owner_and_of_the_command(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene, scene.client() as client:
        await client.kv("settings").set("theme", b"dark")
        for name in ("email", "phone"):
            await client.kv("settings").set(name, SECRET)
        await scene.json("backup", "settings")
        for number, name in enumerate(("email", "phone")):
            cluster = ("--nats", scene.processes.nats.url, "--tenant", "acme")
            purge = ("--timeout", "60", "purge", "settings", "--key", name, "--yes")
            with started_holdfast(*cluster, "--json", *purge, stdout=subprocess.PIPE) as running:
                # At another step each time, whichever it is.
                await asyncio.sleep(0.5 + 0.3 * number)
                scene.servers[f"s{number + 1}"].kill()
                if number == 1:
                    running.kill()
                scene.start(f"s{number + 2}")
                await asyncio.to_thread(running.communicate)
            report = await scene.json(*purge)
            assert report["complete"], report
        assert await everywhere(scene, tmp_path) == []
        assert [entry.key async for entry in client.kv("settings").get_all()] == ["theme"]


async def test_a_tenant_is_purged_whole_and_another_one_is_not(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene, scene.client() as client:
        other = connect(scene.processes.nats.url, tenant="other", timeout_seconds=30)
        async with other as untouched:
            for name in ("notes", "chat"):
                await client.stream(name).append(SECRET)
                await untouched.stream(name).append(b"stays")
            await scene.json("backup", "--all-tenants")
            # Deleted before, and not purged.
            await scene.json("delete", "chat", "--yes")
            report = await scene.json("purge", "--all", "--yes")
            assert (report["complete"], report["stores"]) == (True, 1), report
            assert await everywhere(scene, tmp_path) == []
            for name in ("notes", "chat"):
                assert await values(untouched, name) == ["stays"]


async def test_with_its_table_a_purge_leaves_nothing_and_without_it_says_so(
    tmp_path: Path,
) -> None:
    async with running_scene(tmp_path) as scene, scene.client() as client:
        # In the history of its key, too.
        await client.kv("settings").configure(history=5)
        for value in (SECRET, SECRET, b"later"):
            await client.kv("settings").set("email", value)
        await scene.json("backup", "settings")
        table = TableLocation(default_table(scene.bucket))
        settings = StoreId("acme", StoreKind.KV, "settings")
        export_rows(table, [table_row(settings, 1, key="email", value=SECRET)])
        result = await asyncio.to_thread(
            scene.holdfast, "purge", "settings", "--key", "email", "--yes"
        )
        report = json.loads(result.stdout)
        assert (result.returncode, report["complete"]) == (1, False)
        assert [row["place"] for row in report["remains"]] == ["tables"]
        assert {path.suffix for path in await everywhere(scene, tmp_path)} == {".parquet"}
        epoch = ("--epoch", str(report["epoch"]), "--table", table.url, "--yes")
        alone = await scene.json("purge", "settings", "--key", "email", *epoch, "--only-tables")
        assert [one["erased_rows"] for one in alone["tables"]] == [1]
        assert await everywhere(scene, tmp_path) == []
        again = await scene.json("purge", "settings", "--key", "email", *epoch)
        assert (again["complete"], again["tables"][0]["erased_rows"]) == (True, 0)
        rows = (await scene.json("audit", "--action", "store.purged"))["events"]
        assert any("erased_rows" in row["details"] for row in rows), rows


async def test_a_purge_on_s3_whose_owner_is_killed_leaves_nothing_either(tmp_path: Path) -> None:
    with running_moto() as url, running_processes(tmp_path) as processes:
        scene = Scene(processes, tmp_path, local=False)
        scene.bucket = url
        scene.start("s1")
        endpoint = url.partition("endpoint=")[2].partition("&")[0]
        s3 = boto3.client("s3", endpoint_url=endpoint, region_name=REGION)
        async with scene.client() as client:
            for _ in range(2):
                for name in ("notes", "other"):
                    await client.stream(name).append(SECRET if name == "notes" else b"stays")
                await scene.json("backup", "--all")
            assert await asyncio.to_thread(objects_with, SECRET, s3, BUCKET)
            cluster = ("--nats", processes.nats.url, "--tenant", "acme", "--timeout", "60")
            with started_holdfast(
                *cluster, "--json", "purge", "notes", "--yes", stdout=subprocess.PIPE
            ) as running:
                await asyncio.sleep(0.7)
                scene.servers["s1"].kill()
                scene.start("s2")
                await asyncio.to_thread(running.communicate)
            report = await scene.json("--timeout", "60", "purge", "notes", "--yes")
            assert report["complete"], report
            assert await asyncio.to_thread(objects_with, SECRET, s3, BUCKET) == []
            assert files_with(SECRET, processes.data) == []
            assert await values(client, "other") == ["stays", "stays"]


async def test_what_is_not_there_or_not_a_tenants_own_is_not_purged(tmp_path: Path) -> None:
    """That no tenant's token reaches the servers' jobs at all, `test_auth_callout.py` shows."""
    async with running_scene(tmp_path) as scene, scene.client() as client:
        await client.stream("notes").append(b"stays")
        refused = await scene.error("--tenant", "_system", "purge", "--all", "--yes")
        assert refused["error"] == "invalid_name"
        missing = await scene.error("purge", "nothing", "--yes")
        assert missing["error"] == "not_found"
        assert await values(client, "notes") == ["stays"]

"""Backups, restores and deletions by the command, of stores that clients use meanwhile."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.client import Client, RevisionGoneError, connect
from holdfast.protocol.chain.hashing import after_all
from holdfast.protocol.messages import ChangeKind
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.bucket.bucket import open_bucket
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.snapshots.manifest import open_manifests
from holdfast.shared_fs.store_file.chain.chain_rows import StoredChain
from holdfast.shared_fs.store_file.sqlite_connection import checksum_vfs
from tests.support.cluster import DEADLINE_SECONDS, Process, Processes, running_processes
from tests.support.holdfast_up import call_holdfast
from tests.support.present import present
from tests.support.waiting import until

TENANT = "acme"


class Scene:
    """A cluster with a bucket, on a shared file system or without one, and a client of it."""

    def __init__(self, processes: Processes, directory: Path, *, local: bool) -> None:
        self.processes = processes
        self.directory = directory
        self.local = local
        self.bucket = f"file://{directory / 'bucket'}"
        self.servers: dict[str, Process] = {}

    def start(self, name: str, *options: str) -> None:
        options = ("--bucket", self.bucket, *options)
        if self.local:
            options = (*options, "--disk", "local")
        data = self.directory / f"disk-{name}" if self.local else None
        self.servers[name] = self.processes.start_persist(name, *options, data=data)

    def holdfast(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        cluster = ("--nats", self.processes.nats.url, "--tenant", TENANT)
        return call_holdfast(*cluster, "--json", *arguments)

    async def json(self, *arguments: str) -> Any:
        result = await asyncio.to_thread(self.holdfast, *arguments)
        assert result.returncode == 0, result.stderr.decode() + self.logs()
        return json.loads(result.stdout)

    async def error(self, *arguments: str) -> Any:
        result = await asyncio.to_thread(self.holdfast, *arguments)
        assert result.returncode != 0, result.stdout
        return json.loads(result.stderr.splitlines()[-1])

    def logs(self) -> str:
        return "".join(f"\n{name}:\n{each.log}" for name, each in self.servers.items())

    def client(self) -> Any:
        return connect(self.processes.nats.url, tenant=TENANT, timeout_seconds=DEADLINE_SECONDS)


@asynccontextmanager
async def running_scene(
    tmp_path: Path, *, local: bool = False, own_bucket: bool = False, options: Sequence[str] = ()
) -> AsyncIterator[Scene]:
    """With `own_bucket`, the tenant's snapshots go to a bucket of its own. `options` are those of
    the server."""
    with running_processes(tmp_path) as processes:
        found = Scene(processes, tmp_path, local=local)
        if local:
            # A coordinator that fences in the bucket.
            processes.coordinator.stop()
            processes.coordinator = processes.start(
                "coordinator", "coordinator", "--bucket", found.bucket, "--disk", "local"
            )
        if own_bucket:
            open_manifests(open_bucket(found.bucket)).bucket.close()
            own = ("--bucket", found.bucket, "--own", f"file://{tmp_path / 'own'}")
            assert len((await found.json("tenant", "bucket", TENANT, *own))["places"]) == 2
        found.start("s1", *options)
        yield found


async def values(client: Client, name: str) -> list[str]:
    return [message.value.decode() async for message in client.stream(name).get_all()]


BOTH = pytest.mark.parametrize("local", [False, True], ids=["shared", "local"])


@BOTH
async def test_a_store_goes_back_to_a_backup_and_the_restore_can_be_undone(
    tmp_path: Path, local: bool
) -> None:
    running = running_scene(tmp_path, local=local, own_bucket=local)
    async with running as scene, scene.client() as client:
        notes = client.stream("notes")
        for number in range(3):
            await notes.append(f"a{number}".encode())
        [made] = (await scene.json("backup", "notes"))["backups"]
        assert (made["revision"], made["count"]) == (3, 3)
        for number in range(2):
            await notes.append(f"b{number}".encode())
        report = await scene.json("restore", "notes", "--to-revision", "3", "--yes")
        assert report["exact"]
        assert report["restored_revision"] == 3
        assert report["revision"] == 6
        assert await values(client, "notes") == ["a0", "a1", "a2"]
        ack = await notes.append(b"c")
        # Neither revision nor seq is used a second time.
        assert (ack.revision, ack.seq) == (7, 6)
        kept = (await scene.json("backups", "notes"))["backups"]
        assert [each["revision"] for each in kept][:3] == [6, 5, 3]
        assert {each["key"].partition("/")[0] for each in kept} == {
            "places" if local else "snapshots"
        }
        await scene.json("restore", "notes", "--to-revision", "5", "--yes")
        await notes.append(b"d")
        scene.servers["s1"].kill()
        scene.start("s2")
        assert await values(client, "notes") == ["a0", "a1", "a2", "b0", "b1", "d"]


async def test_a_restored_kv_has_the_history_that_it_had_then(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene, scene.client() as client:
        past = client.kv("past")
        await past.configure(history=3)
        acks = [await past.set("key", b"%d" % number) for number in range(2)]
        await scene.json("backup", "past")
        acks.append(await past.set("key", b"2"))
        await past.delete("key")
        await scene.json("restore", "past", "--to-revision", str(acks[2].revision), "--yes")
        values = [present(change.entry).value for change in await past.history("key")]
        assert values == [b"0", b"1", b"2"]
        # Its revisions from before the restore are no longer those of one past.
        with pytest.raises(RevisionGoneError):
            await past.get("key", revision=acks[1].revision)
        again = await past.set("key", b"3")
        assert present(await past.get("key", revision=again.revision - 1)).value == b"2"


@BOTH
async def test_a_point_between_two_backups_is_reached_by_the_log_or_refused(
    tmp_path: Path, local: bool
) -> None:
    async with running_scene(tmp_path, local=local) as scene, scene.client() as client:
        config = client.kv("config")
        for number in range(3):
            await config.set("key", f"{number}".encode())
        await scene.json("backup", "config")
        for number in range(3, 6):
            await config.set("key", f"{number}".encode())
        report = await scene.json("restore", "config", "--to-revision", "5", "--dry-run")
        assert (report["exact"], report["replayed"], report["revision"]) == (True, 2, None)
        assert present(await config.get("key")).value == b"5"
        report = await scene.json("restore", "config", "--to-revision", "5", "--yes")
        assert present(await config.get("key")).value == b"4"
        refused = await scene.error("restore", "config", "--to-revision", "100", "--yes")
        assert refused["error"] == "point_not_reached"
        assert "--nearest" in refused["try"]


async def test_a_time_is_reached_exactly_where_nothing_can_have_happened_since(
    tmp_path: Path,
) -> None:
    async with running_scene(tmp_path) as scene, scene.client() as client:
        notes = client.stream("notes")
        await notes.append(b"one")
        await scene.json("backup", "notes")
        between = int(time.time() * 1000)
        await asyncio.sleep(0.01)
        await notes.append(b"two")
        report = await scene.json("restore", "notes", "--to-time", str(between), "--yes")
        assert report["exact"]
        assert await values(client, "notes") == ["one"]
        refused = await scene.error("restore", "notes", "--to-time", "1000000000000", "--yes")
        assert refused["error"] == "point_not_reached"


@BOTH
async def test_a_restore_into_a_new_store_leaves_the_old_one_alone_and_takes_no_old_name(
    tmp_path: Path, local: bool
) -> None:
    async with running_scene(tmp_path, local=local) as scene, scene.client() as client:
        notes = client.stream("notes")
        await notes.append(b"one")
        await scene.json("backup", "notes")
        await notes.append(b"two")
        await scene.json("restore", "notes", "--to-revision", "1", "--as", "yesterday")
        assert await values(client, "yesterday") == ["one"]
        assert await values(client, "notes") == ["one", "two"]
        await client.stream("yesterday").append(b"three")
        refused = await scene.error("restore", "notes", "--to-revision", "1", "--as", "yesterday")
        assert refused["error"] == "invalid_argument"
        assert await values(client, "yesterday") == ["one", "three"]


async def test_followers_of_a_restored_store_are_given_the_whole_state_anew(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene, scene.client() as client, scene.client() as other:
        notes = client.stream("notes")
        await notes.append(b"one")
        await scene.json("backup", "notes")
        await notes.append(b"two")
        seen: list[Any] = []

        async def follow() -> None:
            async for change in other.stream("notes").subscribe(start_seq=1):
                seen.append(change)

        following = asyncio.create_task(follow())
        await until(lambda: len(seen) == 2, "both are seen")
        await scene.json("restore", "notes", "--to-revision", "1", "--yes")
        await notes.append(b"three")
        await until(
            lambda: any(
                change.message is not None and change.message.value == b"three" for change in seen
            ),
            "the third one is seen",
        )
        following.cancel()
        kinds = [change.kind for change in seen]
        start = kinds.index(ChangeKind.RESET)
        after = [change.message.value for change in seen[start:] if change.message is not None]
        assert after == [b"one", b"three"]


@BOTH
async def test_a_deleted_store_is_gone_with_every_copy_and_begins_anew_at_seq_1(
    tmp_path: Path, local: bool
) -> None:
    async with running_scene(tmp_path, local=local) as scene, scene.client() as client:
        notes = client.stream("notes")
        for number in range(3):
            await notes.append(b"secret-%d" % number)
        await scene.json("backup", "notes")
        await client.stream("others").append(b"stay")
        report = await scene.json("delete", "notes", "--yes")
        assert report["snapshots"] >= 1
        stores = (await scene.json("stores"))["stores"]
        assert [each["name"] for each in stores] == ["others"]
        snapshots = scene.directory / "bucket" / "objects" / "snapshots" / TENANT
        assert not [each for each in snapshots.glob("notes*/*") if each.is_file()]
        assert (await scene.error("restore", "notes", "--to-revision", "1", "--yes"))[
            "error"
        ] == "not_found"
        # The log still has all of it.
        scene.servers["s1"].kill()
        scene.start("s2")
        assert await values(client, "notes") == []
        ack = await notes.append(b"new")
        assert ack.seq == 1
        assert ack.revision > 3
        assert await values(client, "notes") == ["new"]
        assert await values(client, "others") == ["stay"]


async def test_cold_stores_are_restored_and_deleted_like_any_other(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        scene.servers["s1"].stop()
        scene.start(
            *("s1", "--cold-after-seconds", "1", "--idle-close-seconds", "0.2"),
            *("--snapshot-seconds", "0.2"),
        )

        def files() -> list[str]:
            stores = scene.processes.data / "stores"
            return [path.name for path in stores.rglob("*.db")]

        async with scene.client() as client:
            for name in ("one", "two"):
                await client.stream(name).append(b"a")
                await scene.json("backup", name)
                await client.stream(name).append(b"b")
            await until(lambda: not files(), "both stores are cold")
            report = await scene.json("restore", "one", "--to-revision", "1", "--yes")
            assert report["revision"] == 3
            assert (await client.stream("one").append(b"c")).seq == 3
            assert await values(client, "one") == ["a", "c"]
            await scene.json("delete", "two", "--yes")
            assert await values(client, "two") == []
            assert (await client.stream("two").append(b"new")).seq == 1
            assert await values(client, "two") == ["new"]


async def test_a_store_whose_file_is_lost_comes_back_from_its_backup(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        async with scene.client() as client:
            notes = client.stream("notes")
            await notes.append(b"one")
            await scene.json("backup", "notes")
        assert scene.servers["s1"].stop() == 0
        for path in (scene.processes.data / "stores").rglob("notes.stream.*"):
            path.unlink()
        scene.start("s1")
        report = await scene.json("restore", "notes", "--to-revision", "1", "--yes")
        assert report["revision"] > 1000
        async with scene.client() as client:
            assert await values(client, "notes") == ["one"]
            ack = await client.stream("notes").append(b"two")
            assert ack.seq == 2


async def test_all_is_one_tenant_and_all_tenants_is_everybody(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        other = await connect(scene.processes.nats.url, tenant="other")
        async with scene.client() as client, other:
            await client.stream("notes").append(b"x")
            await other.kv("settings").set("theme", b"dark")
        data = ("--data", str(scene.processes.layout.root), "--bucket", scene.bucket)
        for which, expected in (
            ("--all", {("acme", "notes")}),
            ("--all-tenants", {("acme", "notes"), ("other", "settings")}),
        ):
            made = await scene.json("backup", which)
            assert {(one["tenant"], one["name"]) for one in made["backups"]} == expected
            assert made["failed"] == []
            found = await scene.json("verify", which, *data)
            assert {(one["tenant"], one["name"]) for one in found["stores"]} == expected


async def test_owners_are_compared_with_files_snapshots_and_logs(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        async with scene.client() as client:
            stream, kv = client.stream("ledger"), client.kv("rates")
            await stream.configure(chain=True)
            await kv.configure(chain=True)
            for number in range(5):
                await stream.append(b"%d" % number)
                await kv.set(f"k{number}", b"%d" % number)
            await client.stream("plain").append(b"x")
            await scene.json("backup", "--all")
            await stream.append(b"later")
            await kv.set("k0", b"later")
            asked = ("verify", "--all", "--owners", "--bucket", scene.bucket)
            data = ("--data", str(scene.processes.layout.root))
            for arguments in (asked, (*asked, *data)):
                found = {one["name"]: one for one in (await scene.json(*arguments))["stores"]}
                assert {name: one["chain"] for name, one in found.items()} == {
                    "ledger": "sound",
                    "rates": "sound",
                    "plain": "-",
                }
        server = scene.servers["s1"]
        server.terminate()
        server.stop()
        # Somebody changes what the next owner opens, and mends its chain.
        for name, kind, table, key in (
            ("ledger", StoreKind.STREAM, "messages", "seq = 2"),
            ("rates", StoreKind.KV, "entries", "key = 'k1'"),
        ):
            store = StoreId(TENANT, kind, name)
            layout = scene.processes.layout
            path = layout.store(store, layout.generations(Disk(), store)[-1])
            connection = apsw.Connection(str(path), vfs=checksum_vfs())
            connection.execute(f"UPDATE {table} SET value = x'39' WHERE {key}")
            chain = StoredChain(connection.execute, is_kv=kind is StoreKind.KV)
            chain.load()
            leaves = [leaf for _, leaf in chain.leaves(connection.execute, has_subjects=False)]
            mended = after_all(chain.base.chain, leaves)
            connection.execute(f"UPDATE chain SET value = x'{mended.hex()}'")
            connection.close()
        scene.start("s2")
        asked = ("verify", "--all", "--owners", "--bucket", scene.bucket)
        result = await asyncio.to_thread(scene.holdfast, *asked)
        assert result.returncode == 1, result.stderr
        found = json.loads(result.stdout)
        problems = {one["name"]: one["problems"] for one in found["stores"]}
        assert {name: len(each) for name, each in problems.items()} == {
            "ledger": 1,
            "rates": 1,
            "plain": 0,
        }
        assert "its owner differs from the others between messages 1 and 5" in problems["ledger"][0]
        assert "its owner differs from the others between revisions" in problems["rates"][0]


async def test_an_ephemeral_store_is_backed_up_restored_and_forked_empty(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene, scene.client() as client:
        cursors = client.stream("cursors")
        await cursors.configure(ephemeral=True)
        acks = [await cursors.append(b"zq7%d" % number) for number in range(3)]
        [row] = (await scene.json("stores", "--details"))["stores"]
        assert (row["tier"], row["count"]) == ("memory", 3)
        [made] = (await scene.json("backup", "cursors"))["backups"]
        assert made["count"] == 0
        assert await values(client, "cursors") == ["zq70", "zq71", "zq72"]
        await scene.json("restore", "cursors", "--to-revision", str(made["revision"]), "--yes")
        assert await values(client, "cursors") == []
        acks.append(await cursors.append(b"zq7"))
        await scene.json("fork", "cursors", "trial")
        trial = client.stream("trial")
        assert (await trial.head()).ephemeral
        assert await values(client, "trial") == []
        assert (await trial.append(b"zq7")).durability.word == "memory"
        # A number is given once, whatever the store went through.
        assert len({ack.seq for ack in acks}) == len({ack.revision for ack in acks}) == 4
        for path in tmp_path.rglob("*"):
            assert not path.is_file() or b"zq7" not in path.read_bytes()

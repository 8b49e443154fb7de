"""A tenant is encrypted anew on real processes: servers are killed, the command is run again, and
in the end the former key can be destroyed."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from holdfast.client import Stream
from holdfast.shared_fs.encryption.registry import KeyRegistry, keys_in_folder
from holdfast.shared_fs.encryption.table_values import TableCipher
from holdfast.shared_fs.store_file.encrypted.encrypted_values import box_in_table, read_box
from tests.integration.test_archive import (
    NOTES,
    World,
    export_all,
    judged,
    rows_of,
    run,
    world,
)
from tests.integration.test_backup_restore import BOTH, Scene, running_scene
from tests.integration.test_encrypted_archive import MASTER, fill
from tests.integration.test_encryption import (
    LARGE,
    SECRET,
    master,
    master_key,
    nothing_in_clear,
    seen,
    where,
)
from tests.support.cluster import TENANT
from tests.support.holdfast_up import call_holdfast
from tests.support.present import present
from tests.support.waiting import until

__all__ = ["world"]
#: Stores, and messages of each: enough for a kill in the middle.
_STORES = 24
_MESSAGES = 200
#: So many stores the command has under way.
_AT_ONCE = 4


def rewritten(log: str) -> Counter[str]:
    """Return how often a server says that it rewrote each store."""
    return Counter(re.findall(r"store\.reencrypted store=\w+ '([^']+)'", log))


@BOTH
async def test_the_command_goes_on_after_a_kill_with_what_was_not_rewritten(
    tmp_path: Path, local: bool
) -> None:
    given = master(master_key(tmp_path))
    running = running_scene(tmp_path, local=local, options=given)
    async with running as scene, scene.client() as client:
        names = [f"s{number}" for number in range(_STORES)]
        for name in names:
            values = [SECRET + b"%d" % number for number in range(_MESSAGES)]
            await client.stream(name).append_many(values)
        await scene.json("backup", "--all")
        await scene.json("tenant", "encrypt", TENANT, *where(scene), *given)
        await seen(scene, "s1", 1)
        asked = ("--timeout", "2", "tenant", "reencrypt", TENANT, "--yes")
        command = asyncio.create_task(asyncio.to_thread(scene.holdfast, *asked))
        await until(lambda: len(rewritten(scene.servers["s1"].log)) >= 5)
        scene.servers["s1"].kill()
        assert (await command).returncode != 0, "it had no server, and gave up"
        before = rewritten(scene.servers["s1"].log)
        assert 5 <= len(before) < _STORES
        scene.start("s2", *given)
        found = await asyncio.to_thread(scene.holdfast, "tenant", "reencrypt", TENANT, "--yes")
        report = json.loads(found.stdout)
        assert report["failed"] == []
        after = rewritten(scene.servers["s2"].log)
        rows = report["stores"]
        assert len(rows) == _STORES
        assert after.keys() == {row["name"] for row in rows if not row["done_before"]}
        # A store may have been placed by a server that was killed before it said so.
        assert len(after) <= _STORES - len(before)
        # Such a one may have no later snapshot yet: it is placed again, with nothing to rewrite.
        rewritten_now = [row["values"] for row in rows if row["values"]]
        assert set(rewritten_now) == {_MESSAGES}
        assert len(after) - _AT_ONCE <= len(rewritten_now) <= len(after)
        # Nobody answers for the disk of a server that was killed.
        assert report["complete"] or local
        for name in names:
            first = [each.value async for each in client.stream(name).get_all()]
            assert first == values
        nothing_in_clear(tmp_path / "data" if not local else tmp_path / "disk-s2")
        nothing_in_clear(tmp_path / "bucket")
        # What is written after that with the same key is no reason to do it again.
        await client.stream("s0").append(SECRET)
        again = await asyncio.to_thread(scene.holdfast, "tenant", "reencrypt", TENANT, "--yes")
        rows = json.loads(again.stdout)["stores"]
        assert all(row["done_before"] and not row["values"] for row in rows)
        # Another key is.
        await scene.json("tenant", "rotate-key", TENANT, *where(scene), *given)
        await seen(scene, "s2", 2)
        [row] = (await anew(scene, "s0"))["stores"]
        assert (row["done_before"], row["values"]) == (False, _MESSAGES + 1)
        [row] = (await anew(scene, "s0"))["stores"]
        assert row["done_before"]


async def anew(scene: Scene, *names: str) -> Any:
    asked = ("tenant", "reencrypt", TENANT, *names, "--yes")
    return json.loads((await asyncio.to_thread(scene.holdfast, *asked)).stdout)


@BOTH
async def test_a_former_key_can_be_destroyed_once_nothing_is_encrypted_with_it(
    tmp_path: Path, local: bool
) -> None:
    given = master(master_key(tmp_path))
    async with running_scene(tmp_path, local=local, options=given) as scene:
        async with scene.client() as client:
            await client.stream("notes").head()
            await scene.json("tenant", "encrypt", TENANT, *where(scene), *given)
            await seen(scene, "s1", 1)
            notes, rates = client.stream("notes"), client.kv("rates")
            await notes.append_many([SECRET + b"%d" % number for number in range(20)])
            await notes.append(LARGE)
            await rates.configure(history=3)
            for number in range(4):
                await rates.set("eur", SECRET + b"%d" % number)
            ledger = client.stream("ledger")
            await ledger.configure(chain=True)
            kept = [await ledger.append(SECRET + b"%d" % number) for number in range(3)]
            await scene.json("backup", "notes", "rates", "ledger")
            await notes.fork("trial", seq=2)
            await scene.json("tenant", "rotate-key", TENANT, *where(scene), *given)
            await seen(scene, "s1", 2)
            await notes.append(SECRET + b"under the new key")
            refused = await scene.error("tenant", "drop-key", TENANT, "2", *where(scene), "--yes")
            assert refused["error"] == "invalid_argument" and "rotate first" in refused["message"]
            assert (await anew(scene))["complete"]
            dropped = await scene.json("tenant", "drop-key", TENANT, "1", *where(scene), "--yes")
            assert [each["key"] for each in dropped["keys"]] == [2]
            await seen(scene, "s1", 3)
            made = (await scene.json("backup", "notes", "rates", "ledger", "trial"))["backups"]
            point = str(next(each["revision"] for each in made if each["name"] == "notes"))
            for restarted in (False, True):
                if restarted:
                    scene.servers["s1"].kill()
                    scene.start("s2", *given)
                values = [each.value async for each in notes.get_all()]
                assert values[:20] == [SECRET + b"%d" % number for number in range(20)]
                assert values[21] == SECRET + b"under the new key"
                assert present(await notes.get(21)).value == LARGE
                past = [each.entry.value for each in await rates.history("eur") if each.entry]
                assert past == [SECRET + b"%d" % number for number in (1, 2, 3)]
                assert (await ledger.verify_chain(kept)).is_sound
                trial = [each.value async for each in client.stream("trial").get_all()]
                assert trial == [SECRET + b"0", SECRET + b"1"]
            await scene.json("restore", "notes", "--to-revision", point, "--as", "copy")
            assert present(await client.stream("copy").get(1)).value == SECRET + b"0"
        scene.servers["s2"].stop()
        rows = (await scene.json("verify", "--all", *where(scene), *given))["stores"]
        assert not any(row["problems"] for row in rows)
        shown = await scene.json("tenant", "keys", TENANT, *where(scene))
        assert [each["key"] for each in shown["keys"]] == [2]


def test_archived_messages_and_rows_of_the_table_are_encrypted_anew_and_the_key_can_go(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = master_key(world.folder)
    start = world.processes.start_persist

    def with_key(name: str, *options: str, **more: Any) -> Any:
        return start(name, *options, "--master-key-file", str(key), **more)

    monkeypatch.setattr(world.processes, "start_persist", with_key)

    def asked(*arguments: str) -> Any:
        cluster = ("--nats", world.processes.nats.url, "--tenant", TENANT)
        return call_holdfast(*cluster, "--json", "tenant", *arguments)

    async def body(stream: Stream) -> None:
        first = world.start("s1")
        await stream.configure(chain=True)
        registry = keys_in_folder(world.processes.layout)
        expected: Any = {}
        await fill(stream, 40, expected)
        registry.encrypt([TENANT], MASTER, 1)
        await until(lambda: first.log.count("encryption.changed") >= 1, "it is encrypted")
        await fill(stream, 60, expected)
        expected |= await rows_of(stream)
        await stream.configure(archive_after_seconds=0.05)
        await export_all(world, "s1", stream, monkeypatch)
        await until(lambda: world.archived_count() == 99, "all but the last one are archived")
        kept = (await stream.head()).chain
        # Rows in clear, from before, go with their store's earlier epochs; so does what it had.
        registry.rotate(TENANT, MASTER, 2)
        await until(lambda: first.log.count("encryption.changed") >= 2, "the new key is used")
        table = ("--table", world.table, "--data", str(world.processes.data))
        table = (*table, "--master-key-file", str(key))
        found = await asyncio.to_thread(asked, "reencrypt", TENANT, "--yes", *table)
        report = json.loads(found.stdout)
        [row] = report["stores"]
        assert (row["archived"], row["brought_back"], report["tables"]) == (99, 0, [])
        assert (found.returncode, report["complete"]) == (1, False)
        assert "--with-archived" in report["remains"][0]["removed_by"]
        assert await rows_of(stream) == expected, "what is archived is read back as before"
        found = await asyncio.to_thread(
            asked, "reencrypt", TENANT, "--with-archived", "--yes", *table
        )
        report = json.loads(found.stdout)
        [row] = report["stores"]
        assert (row["archived"], row["brought_back"], row["values"]) == (0, 99, 99), report
        [told] = report["tables"]
        # The 60 that were encrypted with the former key.
        assert (told["rewritten_rows"], told["unreadable_rows"]) == (60, 0)
        assert told["has_clear"] and told["left"] == []
        removed = await asyncio.to_thread(
            asked, "drop-key", TENANT, "1", "--data", str(world.processes.data), "--yes"
        )
        assert removed.returncode == 0, removed.stderr
        await until(lambda: first.log.count("encryption.changed") >= 3, "the old key is gone")
        assert await rows_of(stream) == expected
        # The next export has all of it under the new key, and it is archived anew.
        before = world.archived_count()
        await export_all(world, "s1", stream, monkeypatch)
        await until(lambda: world.archived_count() == before + 99, "all of them once more")
        assert await rows_of(stream) == expected
        assert (await stream.head()).chain == kept
        first.kill()
        second = world.start("s2")
        assert await rows_of(stream) == expected
        again = await asyncio.to_thread(
            asked, "reencrypt", TENANT, "--with-archived", "--yes", *table
        )
        [row] = json.loads(again.stdout)["stores"]
        assert (row["done_before"], row["archived"], row["brought_back"]) == (True, 0, 0)
        await export_all(world, "s2", stream, monkeypatch)
        assert "store.archive_failed" not in first.log + second.log
        assert await rows_of(stream) == expected
        second.terminate()
        assert await asyncio.to_thread(second.wait) == 0
        judged(world, "sound")
        check_rows(world, registry)

    run(world, body)


def check_rows(world: World, registry: KeyRegistry) -> None:
    """Decrypt all rows of the table with the keys that are left."""
    cipher = TableCipher(registry, {MASTER.id: MASTER})
    rows = DeltaTable(world.table).to_pyarrow_table().to_pylist()
    sets = [row for row in rows if row["operation"] == "set"]
    boxes = [box for row in sets if (box := box_in_table(dict(row["headers"] or ()))) is not None]
    assert {read_box("notes", 1, box)[0].key_id for box in boxes} == {2}
    # Those of before, of which 60 were encrypted, and those of the rewritten stream.
    assert (len(sets), len(boxes)) == (200, 160)
    for row in sets:
        cipher.row(NOTES, row["seq"], row["revision"], row["value"], dict(row["headers"] or ()))

"""Encrypted tenants on real processes: nothing that they write is anywhere in clear, owners are
killed, keys are rotated, missing and destroyed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.client import (
    Client,
    KeyUnavailableError,
    TenantShreddedError,
    connect,
)
from holdfast.client.sync import connect as connect_sync
from holdfast.protocol.errors import NoServerError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.encryption.registry import keys_in_folder
from holdfast.shared_fs.encryption.salts import SALT_HEADER
from holdfast.shared_fs.store_file.encrypted.encrypted_values import read_box
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.integration.test_backup_restore import BOTH, TENANT, Scene, running_scene
from tests.support.cluster import refusal
from tests.support.present import present
from tests.support.raw_search import files_with
from tests.support.waiting import until

#: Random, so that nothing else has it.
SECRET = bytes.fromhex("8c1f73a9d04be65217f8c3609ab25d74e1fb0a66")
#: A value of several chunks that no compression shortens much, with the secret in each of them.
LARGE = b"".join(SECRET + number.to_bytes(20) for number in range(65_000))
HEADER = "x-" + SECRET.hex()


def master_key(folder: Path, name: str = "master.key", byte: int = 1) -> Path:
    path = folder / name
    path.touch(0o600)
    path.write_bytes(bytes((byte,)) * 32)
    return path


def where(scene: Scene) -> tuple[str, str]:
    if scene.local:
        return ("--bucket", scene.bucket)
    return ("--data", str(scene.processes.data))


async def seen(scene: Scene, name: str, count: int) -> None:
    """Return once a server has read the registry so often."""
    await until(lambda: scene.servers[name].log.count("encryption.changed") >= count)


@asynccontextmanager
async def encrypted_scene(tmp_path: Path, *, local: bool) -> AsyncIterator[Scene]:
    """A cluster whose tenant is encrypted."""
    master = str(master_key(tmp_path))
    options = ("--master-key-file", master)
    async with running_scene(tmp_path, local=local, options=options) as scene:
        async with scene.client() as client:
            await client.stream("first").head()
        made = await scene.json("tenant", "encrypt", TENANT, *where(scene), *options)
        assert [each["key"] for each in made["keys"]] == [1]
        await seen(scene, "s1", 1)
        yield scene


async def fill(client: Client) -> None:
    """Write the secret in every way there is."""
    notes = client.stream("notes")
    await notes.append(SECRET, headers={"by": HEADER})
    await notes.append_many([SECRET + b"%d" % number for number in range(20)])
    await notes.set(3, SECRET + b"again")
    await notes.append(SECRET, subject="of.a.subject", msg_id="once")
    await notes.append(LARGE)
    settings = client.kv("settings")
    await settings.configure(history=3)
    for number in range(4):
        await settings.set("theme", SECRET + b"%d" % number, headers={"by": HEADER})
    await settings.set("large", LARGE)
    await settings.set_many({"a": SECRET, "b": SECRET})
    await settings.delete("b")


async def check(client: Client) -> None:
    """Read all of it."""
    messages = [message async for message in client.stream("notes").get_all()]
    assert messages[0].value == SECRET and messages[0].headers == {"by": HEADER}
    assert messages[2].value == SECRET + b"again"
    assert (messages[21].value, messages[21].subject) == (SECRET, "of.a.subject")
    assert present(await client.stream("notes").get(23)).value == LARGE
    again = await client.stream("notes").append(b"other", msg_id="once")
    assert (again.seq, again.duplicate) == (22, True)
    settings = client.kv("settings")
    assert present(await settings.get("theme")).value == SECRET + b"3"
    assert present(await settings.get("large")).value == LARGE
    past = [change.entry.value for change in await settings.history("theme") if change.entry]
    assert past == [SECRET + b"1", SECRET + b"2", SECRET + b"3"]


def nothing_in_clear(folder: Path) -> None:
    for secret in (SECRET, HEADER.encode()):
        assert files_with(secret, folder) == []


@BOTH
async def test_what_an_encrypted_tenant_writes_is_nowhere_in_clear_and_survives_its_owners(
    tmp_path: Path, local: bool
) -> None:
    async with encrypted_scene(tmp_path, local=local) as scene:
        async with scene.client() as client:
            followed = client.stream("notes").subscribe(start_seq=1)
            await fill(client)
            first = await anext(followed)
            assert present(first.message).value == SECRET, "followers get what was written"
            await check(client)
            made = (await scene.json("backup", "notes", "settings"))["backups"]
            await client.stream("notes").fork("trial", seq=2)
            trial = [message.value async for message in client.stream("trial").get_all()]
            assert trial == [SECRET, SECRET + b"0"], "it decrypts what its parent encrypted"
            await client.stream("trial").append(SECRET + b"own")
            scene.servers["s1"].kill()
            scene.start("s2", "--master-key-file", str(tmp_path / "master.key"))
            await check(client)
            point = str(next(each["revision"] for each in made if each["name"] == "notes"))
            await scene.json("restore", "notes", "--to-revision", point, "--as", "copy")
            copied = [message.value async for message in client.stream("copy").get_all()]
            assert copied[:2] == [SECRET, SECRET + b"0"], "it decrypts under its former name"
        nothing_in_clear(tmp_path)
        scene.servers["s2"].stop()
        nothing_in_clear(tmp_path)
        verified = await scene.json("verify", "--all", *where(scene))
        assert all(not row["problems"] for row in verified["stores"]), "no key is needed for that"
        assert len(verified["stores"]) >= 4
        # A server without the key says so, and damages and quarantines nothing.
        scene.start("s3")
        async with connect(scene.processes.nats.url, tenant=TENANT, timeout_seconds=3) as client:
            async with asyncio.timeout(30):
                # On a busy machine, its heartbeats may come late.
                refused = await refusal(client.stream("notes").get(1))
                while isinstance(refused, NoServerError):
                    await asyncio.sleep(0.1)
                    refused = await refusal(client.stream("notes").get(1))
            assert isinstance(refused, KeyUnavailableError)
            assert (refused.tenant, refused.retryable) == (TENANT, True)
            unset = await refusal(client.kv("settings").set("a", b""))
            assert isinstance(unset, KeyUnavailableError)
        scene.servers["s3"].stop()
        scene.start("s4", "--master-key-file", str(tmp_path / "master.key"))
        async with scene.client() as client:
            await check(client)
        assert not (scene.processes.data / "quarantine").exists()


async def test_keys_are_rotated_under_load_wrapped_anew_and_destroyed(tmp_path: Path) -> None:
    async with encrypted_scene(tmp_path, local=False) as scene:
        registry = keys_in_folder(scene.processes.layout)
        [before] = registry.record(TENANT).keys
        old, new = tmp_path / "master.key", master_key(tmp_path, "new.key", 2)
        async with scene.client() as client:
            notes = client.stream("notes")
            writing = True

            async def write() -> int:
                count = 0
                while writing:
                    await notes.append(SECRET + b"%d" % count)
                    count += 1
                return count

            writer = asyncio.create_task(write())
            for number in (2, 3):
                await scene.json(
                    *("tenant", "rotate-key", TENANT, *where(scene)),
                    *("--master-key-file", str(old)),
                )
                await seen(scene, "s1", number)
            at_least = present(await notes.head()).last_seq + 1
            await until_seq(notes, at_least)
            writing = False
            count = await writer
            written = [message.value async for message in notes.get_all()]
            assert written == [SECRET + b"%d" % number for number in range(count)]
            wrapped_anew = await scene.json(
                *("tenant", "rewrap", TENANT, *where(scene), "--master-key-file", str(old)),
                *("--new-master-key-file", str(new)),
            )
            assert {each["master"] for each in wrapped_anew["keys"]} != {before.master}
            await restarted_with(scene, notes, new)
            assert [message.value async for message in notes.get_all()] == written
            shredded = await scene.json("tenant", "shred", TENANT, *where(scene), "--yes")
            assert (shredded["encrypted"], shredded["keys"]) == (True, [])
            assert files_with(before.wrapped.hex().encode(), tmp_path) == []
            gone = await shred_error(notes)
            assert gone.fields == {"tenant": TENANT}
            assert isinstance(await refusal(notes.append(b"")), TenantShreddedError)
            error = await scene.error("tenant", "encrypt", TENANT, *where(scene), *master(new))
            assert error["error"] == "tenant_shredded", "a new key would bring nothing back"
            # It can still be removed.
            assert (await scene.json("delete", "notes", "--yes"))["files"] == 1
        nothing_in_clear(tmp_path)


def master(path: Path) -> tuple[str, str]:
    return ("--master-key-file", str(path))


async def until_seq(notes: Any, seq: int) -> None:
    async with asyncio.timeout(30):
        while present(await notes.head()).last_seq < seq:
            await asyncio.sleep(0.01)


async def shred_error(notes: Any) -> TenantShreddedError:
    """Return what readers hear once the server has looked at the registry."""
    async with asyncio.timeout(30):
        while True:
            try:
                await notes.get(1)
            except TenantShreddedError as error:
                return error
            await asyncio.sleep(0.05)


async def restarted_with(scene: Scene, notes: Any, new: Path) -> None:
    """Restart the server with the old master key, which opens nothing any more, and the new one."""
    scene.servers["s1"].stop()
    assert key_ids(scene) == [1, 2, 3], "earlier values keep their keys"
    scene.start("s1", *master(scene.directory / "master.key"), *master(new))
    await notes.get(1)


def key_ids(scene: Scene) -> list[int]:
    """Return the numbers of the keys that the values of a closed store were encrypted with."""
    [path] = (scene.processes.data / "stores").rglob("notes.stream.*.db")
    file = StoreFile.open(path, StoreId(TENANT, StoreKind.STREAM, "notes"))
    try:
        boxes = [(row[0], row[4]) for row in file.messages(1, None, 1 << 40)]
    finally:
        file.close()
    return sorted({read_box("notes", *each)[0].key_id for each in boxes})


async def test_a_chain_goes_on_when_its_tenant_is_encrypted_and_any_owner_continues_it(
    tmp_path: Path,
) -> None:
    async with running_scene(
        tmp_path, options=master(master_key(tmp_path))
    ) as scene, scene.client() as client:
        ledger = client.stream("ledger")
        await ledger.configure(chain=True)
        await ledger.append(b"before")
        given = master(tmp_path / "master.key")
        await scene.json("tenant", "encrypt", TENANT, *where(scene), *given)
        await seen(scene, "s1", 1)
        kept = [await ledger.append(SECRET + b"%d" % number) for number in range(3)]
        rates = client.kv("rates")
        await rates.configure(chain=True, history=2)
        set_first = await rates.set("eur", SECRET)
        await rates.set("eur", SECRET + b"again", headers={"by": HEADER})
        await ledger.delete(2)
        scene.servers["s1"].kill()
        scene.start("s2", *given)
        kept.append(await ledger.append(LARGE))
        report = await ledger.verify_chain(kept)
        assert (report.is_sound, report.matched, report.removed) == (True, (2, 3, 4, 5), 1)
        assert (await rates.verify_chain([set_first])).is_sound
        found = present(await ledger.get(3))
        assert found.value == SECRET + b"1" and list(found.headers) == [SALT_HEADER]
        with connect_sync(scene.processes.nats.url, tenant=TENANT) as blocking:
            assert blocking.stream("ledger").verify_chain(kept).is_sound
        nothing_in_clear(tmp_path)
        scene.servers["s2"].stop()
        for options, chain, values in (((), "links", "-"), (given, "sound", "sound")):
            verified = await scene.json("verify", "ledger", "rates", *where(scene), *options)
            rows = verified["stores"]
            assert [(each["chain"], each["values"]) for each in rows] == [(chain, values)] * 2
            assert not any(each["problems"] for each in rows)


@pytest.mark.parametrize("mode", [0o640, 0o604])
async def test_a_master_key_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = master_key(tmp_path)
    path.chmod(mode)
    async with running_scene(tmp_path) as scene, scene.client() as client:
        await client.stream("first").head()
        error = await scene.error("tenant", "encrypt", TENANT, *where(scene), *master(path))
        assert error["error"] == "invalid_argument"
        assert "others may open" in error["message"]
        assert "chmod go=" in error["message"] + error["try"]


async def test_a_destroyed_tenant_has_its_keys_destroyed_or_its_operator_is_told(
    tmp_path: Path,
) -> None:
    async with encrypted_scene(tmp_path, local=False) as scene:
        registry = keys_in_folder(scene.processes.layout)
        async with scene.client() as client:
            await client.stream("notes").append(SECRET)
        kept = await scene.error("tenant", "destroy", TENANT, "--yes")
        assert kept["error"] == "keys_kept" and "--data" in kept["try"]
        assert registry.record(TENANT).current is not None
        assert "keys" in await remaining(scene)
        done = await scene.json("tenant", "destroy", TENANT, "--yes", *where(scene))
        assert (done["stores"], done["keys"]) == (0, "destroyed")
        assert registry.record(TENANT).shredded is not None
        again = await scene.json("tenant", "destroy", TENANT, "--yes", *where(scene))
        assert again["keys"] == "none"
        assert "keys" not in await remaining(scene)


@BOTH
async def test_what_was_written_in_clear_is_encrypted_and_gone_also_if_its_owner_is_killed(
    tmp_path: Path, local: bool
) -> None:
    given = master(master_key(tmp_path))
    async with running_scene(tmp_path, local=local, options=given) as scene:
        async with scene.client() as client:
            notes, ledger = client.stream("notes"), client.stream("ledger")
            rates = client.kv("rates")
            await notes.append_many([SECRET + b"%d" % number for number in range(9)])
            await notes.append(SECRET, headers={"by": HEADER}, subject="of.a.subject")
            await rates.configure(history=3)
            for number in range(4):
                await rates.set("eur", SECRET + b"%d" % number)
            await ledger.configure(chain=True)
            kept = [await ledger.append(SECRET + b"%d" % number) for number in range(3)]
            await scene.json("backup", "notes", "rates", "ledger")
            await notes.fork("trial", seq=2)
            assert present(await client.stream("trial").get(1)).value == SECRET + b"0"
            before = [message async for message in notes.get_all()]
            assert files_with(SECRET, tmp_path)
            await scene.json("tenant", "encrypt", TENANT, *where(scene), *given)
            await seen(scene, "s1", 1)
            command = asyncio.create_task(reencrypted(scene))
            await until(lambda: scene.servers["s1"].log.count("store.reencrypted") >= 2)
            scene.servers["s1"].kill()
            scene.start("s2", *given)
            assert len(await command) == 4
            nothing_in_clear(tmp_path / "data" if not local else tmp_path / "disk-s2")
            nothing_in_clear(tmp_path / "bucket")
            assert [message async for message in notes.get_all()] == before
            past = [change.entry.value for change in await rates.history("eur") if change.entry]
            assert past == [SECRET + b"1", SECRET + b"2", SECRET + b"3"]
            assert (await ledger.verify_chain(kept)).is_sound
            trial = [message.value async for message in client.stream("trial").get_all()]
            assert trial == [SECRET + b"0", SECRET + b"1"]
        scene.servers["s2"].stop()
        options = (*where(scene), *given)
        rows = (await scene.json("verify", "--all", *options))["stores"]
        assert not any(row["problems"] for row in rows)
        assert {row["values"] for row in rows} == {"sound"}


async def reencrypted(scene: Scene, *names: str) -> list[dict[str, Any]]:
    """Have stores of the tenant rewritten, and return what is said of each. Nothing is left but on
    the disk of a server that was killed, for which nobody answers."""
    asked = ("tenant", "reencrypt", TENANT, *names, "--yes")
    result = await asyncio.to_thread(scene.holdfast, *asked)
    assert result.stdout, result.stderr.decode() + scene.logs()
    report = json.loads(result.stdout)
    left = [row for row in report["remains"] if row["example"].find("server s1") < 0]
    assert left == [] and result.returncode == (0 if report["complete"] else 1)
    assert report["complete"] or scene.local
    rows: list[dict[str, Any]] = report["stores"]
    return rows


async def test_a_tenant_that_is_not_encrypted_is_not_reencrypted(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene, scene.client() as client:
        ack = await client.stream("notes").append(SECRET)
        error = await scene.error("tenant", "reencrypt", TENANT, "--yes")
        assert error["error"] == "invalid_argument"
        assert present(await client.stream("notes").get(ack.seq)).value == SECRET


async def remaining(scene: Scene) -> set[str]:
    """Return the places in which something of the tenant is left."""
    result = await asyncio.to_thread(scene.holdfast, "tenant", "remains", TENANT, *where(scene))
    return {row["place"] for row in json.loads(result.stdout)["remains"]}

"""Encrypted streams in the archive: the table has ciphertext, and their owners read it back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.client import KeyUnavailableError, Stream, TenantShreddedError
from holdfast.shared_fs.encryption.master_keys import MasterKey
from holdfast.shared_fs.encryption.registry import keys_in_folder
from tests.integration.test_archive import (
    Rows,
    World,
    export_all,
    followed,
    judged,
    rows_of,
    run,
    world,
)
from tests.integration.test_encryption import HEADER, SECRET, master_key, nothing_in_clear
from tests.support.cluster import TENANT, refusal
from tests.support.waiting import until

__all__ = ["world"]
MASTER = MasterKey(bytes((1,)) * 32)


async def fill(stream: Stream, count: int, expected: Rows) -> None:
    first = (await stream.head()).last_seq + 1
    for seq in range(first, first + count):
        headers = {"by": HEADER} if seq % 3 == 0 else {}
        expected[seq] = SECRET * (60 if seq % 5 == 0 else 1) + b"%d" % seq, headers
    rows = [expected[seq] for seq in range(first, first + count)]
    await stream.append_many(rows)


def test_archived_messages_of_an_encrypted_tenant_are_ciphertext_that_any_owner_with_keys_reads(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = master_key(world.folder)
    start = world.processes.start_persist

    def with_key(name: str, *options: str, **more: Any) -> Any:
        return start(name, *options, "--master-key-file", str(key), **more)

    monkeypatch.setattr(world.processes, "start_persist", with_key)

    async def body(stream: Stream) -> None:
        first = world.start("s1")
        await stream.head()
        registry = keys_in_folder(world.processes.layout)
        registry.encrypt([TENANT], MASTER, 1)
        await until(lambda: first.log.count("encryption.changed") >= 1, "it is encrypted")
        expected: Rows = {}
        await fill(stream, 60, expected)
        registry.rotate(TENANT, MASTER, 2)
        await until(lambda: first.log.count("encryption.changed") >= 2, "the new key is used")
        await fill(stream, 60, expected)
        await stream.configure(archive_after_seconds=0.05)
        assert (await export_all(world, "s1", stream, monkeypatch)).archived == 1
        await until(lambda: world.archived_count() == 119, "all but the last one are archived")
        assert await rows_of(stream) == expected
        assert await followed(stream, 120) == list(expected)
        nothing_in_clear(world.folder)
        await stream.delete([10])
        del expected[10]
        first.kill()
        second = world.start("s2")
        assert await rows_of(stream) == expected
        await fill(stream, 1, expected)
        await export_all(world, "s2", stream, monkeypatch)
        await until(lambda: world.archived_count() == 120, "the one before it is archived too")
        second.terminate()
        assert await asyncio.to_thread(second.wait) == 0
        assert world.hot_seqs() == [121]
        judged(world, "sound")
        nothing_in_clear(world.folder)
        keyless = start("s3", "--bucket", world.url)
        assert isinstance(await refusal(stream.get(1)), KeyUnavailableError)
        keyless.terminate()
        assert await asyncio.to_thread(keyless.wait) == 0
        third = world.start("s4")
        assert await rows_of(stream) == expected
        registry.shred(TENANT, 3)
        await until(lambda: third.log.count("encryption.changed") >= 2, "the keys are destroyed")
        assert isinstance(await refusal(stream.get(1)), TenantShreddedError)

    run(world, body)

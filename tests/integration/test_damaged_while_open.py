"""One flipped bit in the file of an open store stops that store, and nothing else of its server."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.persist.write_path import checkpointing
from holdfast.protocol import frames
from holdfast.protocol.errors import StoreDamagedError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk import commit_log
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.quarantine import quarantined
from tests.support.cluster import TENANT, values
from tests.support.waiting import until
from tests.support.world_in_loop import world_in_loop

NOTES = StoreId(TENANT, StoreKind.STREAM, "notes")


async def test_a_flipped_bit_and_a_delete_all_stop_one_store_and_not_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Each frame fills a segment, and one is enough for a checkpoint.
    monkeypatch.setattr(commit_log, "LOG_SEGMENT_BYTES", 1)
    monkeypatch.setattr(checkpointing, "_QUIET_SEGMENTS", 1)
    async with world_in_loop(tmp_path) as world:
        server = await world.start("s1")
        peer = world.peer
        for counter in range(1, 13):
            await peer.write("notes", counter, *([frames.APPEND, b"x" * 900],) * 100)
        await peer.write("other", 1, [frames.APPEND, b"1"])
        await peer.write("other", 2, [frames.APPEND, b"2"])
        path = world.layout.store(NOTES)
        await until(lambda: path.exists() and path.stat().st_size > 1_000_000, "it is durable")
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2)
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 4]))
        await peer.write("notes", 13, [frames.TRIM, None])
        assert server.parts is not None
        log = server.parts.storage.synced_log.log
        trimmed = log.segment
        await peer.write("other", 3, [frames.APPEND, b"3"])
        await peer.write("other", 4, [frames.APPEND, b"4"])
        await until(lambda: "store.set_aside" in caplog.text, "it is set aside")
        await until(lambda: log.oldest_segment > trimmed, "the log goes on")
        (folder,) = quarantined(Disk(), world.layout, NOTES)
        assert (folder / path.name).exists()
        with pytest.raises(StoreDamagedError, match="quarantine/"):
            await values(peer)
        with pytest.raises(StoreDamagedError, match="quarantine/"):
            await peer.write("notes", 14, [frames.APPEND, b"lost"])
        assert await values(peer, "other") == [b"1", b"2", b"3", b"4"]
        # Nor is it a new store to the next owner.
        server.stop()
        await world.ended("s1")
        await world.start("s2")
        with pytest.raises(StoreDamagedError, match="quarantine/"):
            await peer.write("notes", 14, [frames.APPEND, b"lost"])
        assert await values(peer, "other") == [b"1", b"2", b"3", b"4"]

"""The logs of dead servers are damaged or removed: nothing acknowledged is missing without a
word."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from holdfast.cli.doctor.checks import DOUBTFUL_STORES, LOG_DAMAGE
from holdfast.cli.doctor.examination import Examination
from holdfast.protocol import frames
from holdfast.protocol.errors import StoreDamagedError
from tests.support.cluster import Peer, Process, Processes, refusal, serving, values
from tests.support.waiting import until


async def append(peer: Peer, name: str, counter: int, value: bytes) -> None:
    await peer.write(name, counter, [frames.APPEND, value])


def flip(segment: Path, value: bytes) -> None:
    """Damage the frame that holds `value`."""
    content = bytearray(segment.read_bytes())
    content[content.index(value)] ^= 1
    segment.write_bytes(content)


async def die_with_a_damaged_log(processes: Processes, server: Process, peer: Peer) -> Path:
    """Write a, b, a, a, kill, damage the frame of b; return the segment. `closed` was closed."""
    await append(peer, "closed", 1, b"first")
    assert server.stop() == 0
    server = processes.start_persist("s1")
    await append(peer, "a", 1, b"1")
    await append(peer, "b", 1, b"precious")
    for counter in (2, 3):
        await append(peer, "a", counter, b"%d" % counter)
    incarnation = processes.incarnations("s1")[-1]
    server.kill()
    (segment,) = processes.layout.log("s1", incarnation).iterdir()
    flip(segment, b"precious")
    return segment


async def test_a_store_whose_last_changes_were_damaged_is_refused_and_all_others_are_served(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as (processes, server, peer):
        segment = await die_with_a_damaged_log(processes, server, peer)
        incarnation = segment.parent.parent.name
        server = processes.start_persist("s1")
        for _ in range(2):
            error = await refusal(values(peer, "b"))
            assert isinstance(error, StoreDamagedError)
            assert f"incarnation {incarnation} of server s1" in str(error)
            assert segment.name in str(error)
        assert isinstance(await refusal(append(peer, "b", 2, b"more")), StoreDamagedError)
        assert await values(peer, "a") == [b"1", b"2", b"3"]
        assert await values(peer, "closed") == [b"first"]
        assert await values(peer, "new") == []
        assert "log.damage" in server.log
        # The next life of the next server refuses as well.
        server.kill()
        server = processes.start_persist("s2")
        assert isinstance(await refusal(values(peer, "b")), StoreDamagedError)
        assert await values(peer, "a") == [b"1", b"2", b"3"]
        # Whoever reaps passes by the damaged log: the one of the life after it goes.
        later = processes.incarnations("s1")[-1]
        assert later > incarnation
        await until(lambda: f"log.reaped server=s1 incarnation={later}" in server.log, "reaped")
        assert segment.exists()

        examination = Examination(processes.data)
        examination.run()
        assert examination.findings.results[LOG_DAMAGE.code].outcome == "critical"

        segment.parent.with_name("loss-accepted").touch()
        assert await values(peer, "b") == []
        await append(peer, "b", 2, b"again")
        await until(lambda: not segment.parent.parent.exists(), "the log is let go")
        folder = processes.layout.quarantine / "_logs" / f"s1.{incarnation}"
        assert {each.name for each in folder.iterdir()} == {segment.name, "report.json"}
        assert await values(peer, "a") == [b"1", b"2", b"3"]


async def test_an_old_store_whose_last_change_was_damaged_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as (processes, server, peer):
        await append(peer, "b", 1, b"old")
        assert server.stop() == 0
        server = processes.start_persist("s1")
        await append(peer, "b", 2, b"precious")
        for counter in (1, 2):
            await append(peer, "a", counter, b"%d" % counter)
        incarnation = processes.incarnations("s1")[-1]
        server.kill()
        (segment,) = processes.layout.log("s1", incarnation).iterdir()
        flip(segment, b"precious")
        processes.start_persist("s1")
        with pytest.raises(StoreDamagedError, match="changes after revision 1 may be missing"):
            await values(peer, "b")
        assert await values(peer, "a") == [b"1", b"2"]
        examination = Examination(processes.data)
        examination.run()
        doubtful = examination.findings.results[DOUBTFUL_STORES.code]
        assert [each.where.rpartition("/")[2] for each in doubtful.examples] == ["b.stream.1.db"]
        segment.parent.with_name("loss-accepted").touch()
        assert await values(peer, "b") == [b"old"]


async def test_a_removed_log_is_missed_and_its_stores_are_refused_until_it_is_back(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as (processes, server, peer):
        await append(peer, "b", 1, b"old")
        await append(peer, "closed", 1, b"old")
        assert server.stop() == 0
        server = processes.start_persist("s1")
        await append(peer, "b", 2, b"precious")
        await append(peer, "young", 1, b"precious")
        incarnation = processes.incarnations("s1")[-1]
        server.kill()
        log = processes.layout.log("s1", incarnation)
        shutil.move(log, tmp_path / "aside")
        server = processes.start_persist("s1")
        for name in ("b", "young"):
            with pytest.raises(StoreDamagedError, match=f"{incarnation} of server s1 is missing"):
                await values(peer, name)
        assert await values(peer, "closed") == [b"old"]
        await until(lambda: "log.missing" in server.log, "it is told")
        shutil.move(tmp_path / "aside", log)
        assert await values(peer, "b") == [b"old", b"precious"]
        assert await values(peer, "young") == [b"precious"]
        await until(lambda: not log.parent.exists(), "the log is let go")

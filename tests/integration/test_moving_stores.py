"""Stores move between real servers while they are written, as an operator's commands say."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from holdfast.client.wire.router import Router
from holdfast.protocol.bus.bus_nats import connect_nats
from holdfast.protocol.errors import NotFoundError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.protocol.subjects import Subjects
from tests.integration.test_drain import TENANT, Scene, running_scene
from tests.support.cluster import DEADLINE_SECONDS
from tests.support.documents import read
from tests.support.load import running_load


def documented_commands() -> list[list[str]]:
    """Return the commands of the example in operations.md, without `holdfast`."""
    example = re.compile(r"```sh\n(holdfast rebalance --dry-run.*?)```", re.DOTALL)
    [block] = example.findall(read("operations.md"))
    return [shlex.split(line, comments=True)[1:] for line in block.splitlines()]


async def said(scene: Scene, *arguments: str) -> tuple[int | None, Any]:
    """Run a command; return its exit code and what it says."""
    process = await scene.command("--tenant", TENANT, *arguments)
    out, errors = await process.communicate()
    return process.returncode, json.loads(out or errors)


async def test_stores_move_while_they_are_written_and_no_writer_is_told_an_error(
    tmp_path: Path,
) -> None:
    async with running_scene(tmp_path, ("p1", "p2")) as scene:
        await scene.client.stream("chat.7").append(b"hello")
        dry_run, run, move = documented_commands()
        (_, before), (code, after), (moved, report) = await asyncio.gather(
            said(scene, *dry_run), said(scene, *run), said(scene, *move)
        )
        assert before["dry_run"] and "moves" in before and "moved" not in before
        # With next to nothing to do, a run ends at once.
        assert (code, after["failed"]) == (0, 0)
        assert {each["server"] for each in after["after"]} == {"p1", "p2"}
        assert (moved, report["to"]) == (0, "p2")
        async with running_load(scene.client, 40) as load:
            bus = await connect_nats(scene.processes.nats.url, name="test-operator")
            try:
                router = Router(bus, Subjects(), TENANT)
                with pytest.raises(NotFoundError, match="p3"):
                    await router.move(StoreId(TENANT, StoreKind.STREAM, "chat.7"), "p3")
                for name in load.names:
                    await router.move(StoreId(TENANT, StoreKind.STREAM, name), "p2")
                async with asyncio.timeout(DEADLINE_SECONDS):
                    while set((await scene.owners()).values()) != {"p2"}:
                        await asyncio.sleep(0.02)
                told = await router.rebalance(dry_run=True)
            finally:
                await bus.close()
            await load.more(2)
            # One server does all of it, as the other one says.
            assert {each.server: each.open_stores > 0 for each in told.servers} == {
                "p1": False,
                "p2": True,
            }
        await load.check()
        print(load.pauses())

"""The sweep for files that nobody uses goes on, whatever one pass of it met."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.persist.tier.cooling import Cooler
from holdfast.shared_fs.disk.layout import Layout
from tests.support.held_claims import held_claims
from tests.support.write_path_parts import a_life


async def test_an_unexpected_exception_in_one_sweep_ends_no_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    swept = asyncio.Semaphore(0)

    async def run_in_thread(work: Any) -> Any:
        swept.release()
        raise ZeroDivisionError("float division by zero")

    policy = SimpleNamespace(sweep_seconds=lambda: 0.0)
    life = a_life(Layout(tmp_path), server="s1")
    sweep = Cooler(
        cast(Any, SimpleNamespace(policy=policy)),
        life,
        cast(Any, None),
        run_in_thread,
        held_claims(life),
        cast(Any, SimpleNamespace(sweeps=())),
    )
    running = asyncio.create_task(sweep.run())
    for _ in range(3):
        await swept.acquire()
    assert not running.done()
    running.cancel()
    assert "tier.sweep_failed what=s1 count=1" in caplog.text

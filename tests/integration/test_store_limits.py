"""Limits and ttl outlive the server that keeps them."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from holdfast.client import Discard, InvalidArgumentError, StoreConfig
from tests.support.cluster_in_loop import cluster_with_client, pid_of

DEADLINE_SECONDS = 30.0


async def test_a_configuration_outlives_its_server(tmp_path: Path) -> None:
    async with cluster_with_client(tmp_path) as (cluster, client):
        stream = client.stream("limited")
        assert await stream.config() == StoreConfig()
        configured = await stream.configure(max_messages=3, description="ours")
        assert configured == StoreConfig(max_messages=3, description="ours")
        for number in range(5):
            await stream.append(b"%d" % number)
        assert [each.seq async for each in stream.get_all()] == [3, 4, 5]
        await stream.append(b"lasts a moment", ttl_seconds=2.0)
        owner = (await stream.head()).server
        os.kill(pid_of(cluster, owner), signal.SIGKILL)
        assert await stream.config() == configured
        await stream.append(b"7")
        assert (await stream.head()).server != owner
        assert (await stream.head()).count <= 3

        async with asyncio.timeout(DEADLINE_SECONDS):
            while await stream.get(6) is not None:
                # A moment is a moment: the new owner knows when it ends.
                await asyncio.sleep(0.05)
        assert [each.seq async for each in stream.get_all()] == [5, 7]
        changed = await stream.configure(max_messages=None, max_bytes=100, discard="new")
        assert changed == StoreConfig(max_bytes=100, discard=Discard.NEW, description="ours")

        with pytest.raises(InvalidArgumentError, match="max_messages"):
            await stream.configure(max_messages=0)
        with pytest.raises(InvalidArgumentError, match="maximum"):
            await stream.configure(maximum=1)  # type: ignore[call-arg]

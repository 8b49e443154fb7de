"""Reads of snapshots without a cache nearby, or with the caches that a test names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from holdfast.persist.block_cache.near_reads import NearReads
from holdfast.persist.block_cache.serving_blocks import BlockServer
from holdfast.persist.incarnation import Incarnation


def near_of(life: Incarnation, *caches: str, own: BlockServer | None = None) -> NearReads:
    """Return the reads of a server to which a coordinator names these caches."""

    async def listed() -> tuple[str, ...]:
        return caches

    coordination: Any = SimpleNamespace(caches=listed)
    return NearReads(life, coordination, own)

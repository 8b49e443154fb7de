"""Reads of snapshots without a cache nearby, or with the caches that a test names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from holdfast.persist.block_cache.near_reads import NearReads
from holdfast.persist.block_cache.serving_blocks import BlockServer
from holdfast.persist.incarnation import Incarnation
from holdfast.persist.peers.zone_helpers import ZoneHelpers
from holdfast.protocol.work.roles import Role


def near_of(life: Incarnation, *caches: str, own: BlockServer | None = None) -> NearReads:
    """Return the reads of a server to which a coordinator names these caches."""

    return NearReads(life, helpers_of({Role.CACHE: caches}), own)


def helpers_of(servers: dict[Role, tuple[str, ...]]) -> ZoneHelpers:
    """Return the helpers of a zone that a coordinator names."""

    async def listed() -> dict[Role, tuple[str, ...]]:
        return servers

    coordination: Any = SimpleNamespace(helpers=listed)
    return ZoneHelpers(coordination)

"""Reads of snapshots without a cache nearby, or with the caches that a test names."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from holdfast.persist.block_cache.near_reads import NearReads
from holdfast.persist.block_cache.serving_blocks import BlockServer
from holdfast.persist.incarnation import Incarnation
from holdfast.persist.peers.coordination import Coordination, Helpers
from holdfast.persist.peers.zone_helpers import ZoneHelpers
from holdfast.protocol.work.cold_work import archive_works
from holdfast.protocol.work.roles import Role
from holdfast.protocol.work.zones import NOWHERE


def near_of(life: Incarnation, *caches: str, own: BlockServer | None = None) -> NearReads:
    """Return the reads of a server to which a coordinator names these caches."""

    return NearReads(life, helpers_of({Role.CACHE: caches}), own)


def helpers_of(servers: dict[Role, tuple[str, ...]]) -> ZoneHelpers:
    """Return the helpers of a zone that a coordinator names. Those that read the archive have each
    the same number of its parts, in epoch 1."""
    archive = servers.get(Role.ARCHIVE, ())
    parts = archive_works(NOWHERE) if archive else ()
    listed = Helpers(
        servers.get(Role.CACHE, ()),
        {work: (archive[number % len(archive)], 1) for number, work in enumerate(parts)},
    )
    return ZoneHelpers(named(lambda: listed))


def named(helpers: Callable[[], Helpers]) -> Coordination:
    """Return a coordinator that names these."""

    async def listed() -> Helpers:
        return helpers()

    coordination: Any = SimpleNamespace(helpers=listed)
    return cast(Coordination, coordination)

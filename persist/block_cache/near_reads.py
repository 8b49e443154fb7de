"""Reads of snapshots from the caches of a server's zone, before the bucket is asked.

    near = await near_reads.read(version)         # None: read the bucket
    fetch(bucket, store, version, draft, near=near)
    await near_reads.used(version, near)

`fetch` checks what it is given as it checks the bucket's bytes, and reads the bucket if it is
wrong. Invariants:

- A cache that does not answer at once delays one read: it is left alone for AWAY_SECONDS. A dead
  one is noticed immediately, as nobody listens on its subject.
- Only caches of this server's zone are asked. Without a zone, those without one.
- Nothing runs while nobody reads: the list of caches is asked for when a read finds it old.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from holdfast.persist.block_cache.blocks import Ask, asks_of
from holdfast.persist.block_cache.serving_blocks import BlockServer
from holdfast.persist.incarnation import Incarnation
from holdfast.persist.peers.zone_helpers import ZoneHelpers, ranked
from holdfast.protocol import frames
from holdfast.protocol.errors import HoldfastError, MalformedFrameError, UnavailableError
from holdfast.protocol.limits import MAX_NEAR_SNAPSHOT_BYTES
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.work.roles import Role
from holdfast.shared_fs.snapshots.snapshot import Near
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion

logger = logging.getLogger("holdfast.persist")

#: How long a cache has for an answer. The bucket needs a tenth of it.
_ASK_SECONDS: Final = 1.0
_AWAY_SECONDS: Final = 10.0


class NearReads:
    """What one incarnation reads from the caches of its zone."""

    def __init__(
        self, life: Incarnation, helpers: ZoneHelpers, own: BlockServer | None
    ) -> None:
        """`own` are the blocks of this server, if it is a cache itself."""
        self._server = life.server
        self._bus = life.bus
        self._subjects = life.subjects
        self._helpers = helpers
        self._own = own
        self._sources = life.statistics.counters(metrics.COLD_READS)

    async def read(self, version: SnapshotVersion) -> Near | None:
        """Return the compressed snapshot, or None if the bucket must be read."""
        if version.length > MAX_NEAR_SNAPSHOT_BYTES:
            self._sources.add("bucket")
            return None
        parts: list[bytes] = []
        for asks in asks_of(version.key, version.offset, version.length):
            server = await self._cache_of(asks[0])
            if server is None:
                self._sources.add("bucket")
                return None
            try:
                # The first ask brings all of the piece; the others wait for the same.
                parts += await asyncio.gather(*(self._ask(server, ask) for ask in asks))
            except HoldfastError as error:
                if isinstance(error, UnavailableError):
                    self._helpers.leave_alone(Role.CACHE, server, _AWAY_SECONDS)
                logger.debug("cache.refused cache=%s reason=%s", server, error)
                self._sources.add("bucket")
                return None
        self._sources.add("cache")
        return Near(b"".join(parts))

    async def used(self, version: SnapshotVersion, near: Near | None) -> None:
        """Have the caches forget an object of which one gave wrong bytes."""
        if near is None or not near.wrong:
            return
        logger.error("cache.wrong key=%s", version.key)
        self._sources.add("wrong")
        for asks in asks_of(version.key, version.offset, version.length):
            server = await self._cache_of(asks[0])
            if server == self._server and self._own is not None:
                self._own.drop(version.key)
            elif server is not None:
                payload = frames.encode_control(drop=version.key)
                await self._bus.publish(self._subjects.blocks(server), payload)

    async def _cache_of(self, ask: Ask) -> str | None:
        servers = ranked(ask.key, ask.piece, await self._helpers.caches())
        return servers[0] if servers else None

    async def _ask(self, server: str, ask: Ask) -> bytes:
        """Return a part of a block from a cache. Raises HoldfastError."""
        if server == self._server and self._own is not None:
            return await self._own.part(ask)
        payload = frames.encode_control(**ask._asdict())
        subject = self._subjects.blocks(server)
        answer: Any = frames.decode_control(await self._bus.request(subject, payload, _ASK_SECONDS))
        part = answer.get("part")
        if type(part) is not bytes or len(part) > ask.length:
            raise MalformedFrameError(reason="a block: bytes of at most the length asked for")
        return part

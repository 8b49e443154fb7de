"""Which gateway serves which stream: the streams are in shards, and shards are hashed to gateways.

Pure. Rendezvous hashing: each gateway gets a score for each shard, and the highest has it. So a
gateway that comes takes only what will be its own, and what a gateway had that goes is spread over
all others. Shards keep that cheap: a change of gateways costs a hash for each shard and gateway,
and not for each of a million streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final
from zlib import crc32

#: Enough that the largest share of ten gateways is a few percent above the mean.
SHARD_COUNT: Final = 4096


def shard_of(stream: str) -> int:
    """Return the shard of a stream."""
    return crc32(stream.encode()) % SHARD_COUNT


class ShardTable:
    """Who has which shard while these gateways are alive."""

    def __init__(self, gateways: Sequence[str]) -> None:
        self.gateways = tuple(gateways)
        self._owners = [_owner(shard, self.gateways) for shard in range(SHARD_COUNT)]
        self._shards: dict[str, frozenset[int]] = {}

    def gateway_of(self, stream: str) -> str:
        """Return the gateway that serves a stream, or "" if none is alive."""
        return self._owners[shard_of(stream)]

    def shards_of(self, gateway: str) -> frozenset[int]:
        """Return the shards of a gateway."""
        found = self._shards.get(gateway)
        if found is None:
            owned = (shard for shard, owner in enumerate(self._owners) if owner == gateway)
            found = self._shards[gateway] = frozenset(owned)
        return found


def _owner(shard: int, gateways: Sequence[str]) -> str:
    if len(gateways) < 2:
        return gateways[0] if gateways else ""
    mark = shard.to_bytes(2, "big")
    return max(
        gateways,
        key=lambda gateway: (blake2b(gateway.encode() + mark, digest_size=8).digest(), gateway),
    )

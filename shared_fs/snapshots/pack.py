"""Packs: many tiny snapshots of one tenant in one object.

    packs/<tenant>/<time_ms:013d>-<nonce>
    packs/<time_ms:013d>-<nonce>            of any tenants, as earlier versions put them
    places/<tenant>/<number>/packs/...      in a bucket of the tenant's own (`places.py`)

    snapshot, snapshot, ...     each one zstd frame, read by its range
    index                       one zstd frame with a checksum: the place and store of each snapshot
    footer                      the index's length and a magic number

A version in a manifest names a pack, an offset and a length. So the index is needed only if the
manifests are lost, or to find out what else is in a pack. What no manifest names any more is
garbage until the collector has moved the rest of the pack elsewhere.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Sequence
from dataclasses import astuple
from typing import Final

import msgpack
import zstandard

from holdfast.protocol.errors import NewerFormatError
from holdfast.protocol.limits import MIB
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_errors import ObjectDamagedError
from holdfast.shared_fs.snapshots.places import place_prefix
from holdfast.shared_fs.snapshots.snapshot import COMPRESSION_LEVEL, Snapshot, check_put
from holdfast.shared_fs.snapshots.store_entry import VERSION_FIELDS, SnapshotVersion

PACK_PREFIX: Final = "packs/"
#: The size of one pack: large enough that one request puts hundreds of snapshots, small enough to
#: be built in memory and to be rewritten by the collector.
PACK_BYTES: Final = 16 * MIB

_KEY: Final = re.compile(r"packs/(?:[^/]+/)?([0-9]{13})-[^/]+")
_INDEX_FORMAT: Final = 1
_FOOTER: Final = struct.Struct("<I8s")
_MAGIC: Final = b"HFpack01"
_MAX_INDEX_BYTES: Final = 64 * MIB
#: Without the key, which is the pack's, and what no snapshot in a pack has: an origin, and frames.
_FIELD_COUNT: Final = VERSION_FIELDS.index("origin") - 1

Packed = list[tuple[StoreId, SnapshotVersion]]


def packs_of(snapshots: Sequence[Snapshot]) -> list[list[Snapshot]]:
    """Return the snapshots in groups, one for each pack: of one tenant, and in order."""
    groups: list[list[Snapshot]] = []
    #: The last group of each tenant, and its size.
    last: dict[str, tuple[list[Snapshot], int]] = {}
    for snapshot in snapshots:
        group, size_bytes = last.get(snapshot.store.tenant, ([], 0))
        if group and size_bytes + snapshot.length > PACK_BYTES:
            group, size_bytes = [], 0
        if not group:
            groups.append(group)
        group.append(snapshot)
        last[snapshot.store.tenant] = group, size_bytes + snapshot.length
    return groups


def full_packs(snapshots: Sequence[Snapshot]) -> tuple[list[list[Snapshot]], list[Snapshot]]:
    """Return groups to put now, the largest first, and the rest, which has at most PACK_BYTES and
    may wait for more snapshots of its tenants."""
    groups = sorted(packs_of(snapshots), key=_length)
    waiting_bytes = sum(map(_length, groups))
    full = []
    while waiting_bytes > PACK_BYTES:
        full.append(groups.pop())
        waiting_bytes -= _length(full[-1])
    return full, [snapshot for group in groups for snapshot in group]


def put_pack(bucket: Bucket, snapshots: Sequence[Snapshot], time_ms: int, nonce: str) -> Packed:
    """Put snapshots of one tenant into one object and return their versions, after checking it.

    Raises ObjectDamagedError if the object differs from what was put, BucketError.
    """
    [tenant] = {snapshot.store.tenant for snapshot in snapshots}
    key = f"{bucket.place_of(tenant)}{PACK_PREFIX}{tenant}/{time_ms:013d}-{nonce}"
    body, versions = encode_pack(key, snapshots)
    sha256 = hashlib.sha256(body).hexdigest()
    bucket.put_new(key, body, {"sha256": sha256, "stores": str(len(snapshots))})
    check_put(bucket, key, len(body), sha256)
    return versions


def encode_pack(key: str, snapshots: Sequence[Snapshot]) -> tuple[bytes, Packed]:
    """Return the body of a pack, and the versions in it."""
    parts: list[bytes] = []
    versions: Packed = []
    offset = 0
    for snapshot in snapshots:
        assert isinstance(snapshot.body, bytes)
        versions.append((snapshot.store, snapshot.version(key, offset)))
        parts.append(snapshot.body)
        offset += snapshot.length
    rows = [[*store, *astuple(version)[1 : 1 + _FIELD_COUNT]] for store, version in versions]
    compressor = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL, write_checksum=True)
    index = compressor.compress(msgpack.packb([_INDEX_FORMAT, rows]))
    return b"".join([*parts, index, _FOOTER.pack(len(index), _MAGIC)]), versions


def read_index(bucket: Bucket, key: str) -> Packed:
    """Return the versions in a pack.

    Raises ObjectMissingError, ObjectDamagedError, NewerFormatError, BucketError.
    """
    try:
        footer = bucket.get_tail(key, _FOOTER.size).body
        index_bytes, magic = _FOOTER.unpack(footer)
        if magic != _MAGIC:
            raise ValueError("it does not end as a pack does")
        tail = bucket.get_tail(key, index_bytes + _FOOTER.size).body
        packed = zstandard.ZstdDecompressor().decompress(
            tail[:index_bytes], max_output_size=_MAX_INDEX_BYTES
        )
        content = msgpack.unpackb(packed)
        if content[0] > _INDEX_FORMAT:
            raise NewerFormatError(what=key, found=content[0], known=_INDEX_FORMAT)
        return [
            (StoreId(*row[:3]), SnapshotVersion(key, *row[3 : 3 + _FIELD_COUNT]))
            for row in content[1]
        ]
    except (zstandard.ZstdError, struct.error, ValueError, TypeError, IndexError) as error:
        raise ObjectDamagedError(key=key, reason=f"not a pack: {error}") from error


def is_pack(key: str) -> bool:
    """Tell whether a key that a manifest names is a pack's, and not that of one snapshot."""
    return key.removeprefix(place_prefix(key)).startswith(PACK_PREFIX)


def time_of_pack(key: str) -> int:
    """Return when a pack was made, in milliseconds. Raises ValueError for all other keys: what else
    lies there is not ours to remove."""
    found = _KEY.fullmatch(key.removeprefix(place_prefix(key)))
    if found is None:
        raise ValueError(f"{key!r} is no pack's")
    return int(found[1])


def _length(group: Sequence[Snapshot]) -> int:
    return sum(snapshot.length for snapshot in group)

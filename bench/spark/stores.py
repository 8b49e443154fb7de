"""The stores that the benchmark of the export reads: made up, or editing traces.

Each is a closed store file for the peers, and a snapshot of it in a bucket for the export.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.protocol.changes import CHANGE_SET_MESSAGE
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.bucket.bucket import open_bucket
from holdfast.shared_fs.snapshots.manifest import open_manifests
from holdfast.shared_fs.snapshots.pack import packs_of, put_pack
from holdfast.shared_fs.snapshots.snapshot import compress, put, take_image
from holdfast.shared_fs.snapshots.store_entry import KeepPolicy, SnapshotVersion
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile

_TICK_MESSAGES: Final = 5000
_START_MS: Final = 1_795_230_000_000

#: The name of a store, and its values tick by tick.
Content = tuple[str, Iterable[Sequence[bytes]]]


class ClosedFile(NamedTuple):
    """A store file that nobody has open."""

    store: str
    path: Path
    last_seq: int


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores to export: closed store files, and snapshots of them in a bucket."""

    files: tuple[ClosedFile, ...]
    bucket: str
    messages: int
    file_bytes: int


def made_up(count: int, seed: int = 0) -> Iterator[Sequence[bytes]]:
    """Yield `count` values, in lists of some thousand."""
    random_bytes = random.Random(seed).randbytes
    for first in range(1, count + 1, _TICK_MESSAGES):
        seqs = range(first, min(first + _TICK_MESSAGES, count + 1))
        ids = random_bytes(15 * len(seqs)).hex(":", 15).split(":")
        yield [
            b'{"op":"insert","at":%d,"id":"%s"}' % (seq % 997, one.encode())
            for seq, one in zip(seqs, ids, strict=True)
        ]


def editing_traces(folder: Path | None) -> Iterator[Content]:
    """Yield a store for each trace (github.com/josephg/editing-traces). Raises
    InvalidArgumentError."""
    files = [] if folder is None else sorted(folder.glob("*.json.gz"))
    if not files:
        raise InvalidArgumentError(argument="traces", reason=f"{folder} holds no *.json.gz")
    for file in files:
        with gzip.open(file) as opened:
            edits = [json.dumps(one["patches"]).encode() for one in json.load(opened)["txns"]]
        ticks = range(0, len(edits), _TICK_MESSAGES)
        name = file.name.partition(".")[0]
        yield f"trace.{name}", (edits[first : first + _TICK_MESSAGES] for first in ticks)


def make_stores(folder: Path, contents: Iterable[Content]) -> Stores:
    """Write store files and publish a snapshot of each."""
    bucket_url = f"file://{folder}/bucket"
    files: list[ClosedFile] = []
    (folder / "stores").mkdir()
    with closing(open_bucket(bucket_url)) as bucket:
        versions: list[tuple[StoreId, SnapshotVersion]] = []
        tiny = []
        for number, (name, ticks) in enumerate(contents):
            store = StoreId("acme", StoreKind.STREAM, name)
            path = folder / "stores" / f"{number}.db"
            file = StoreFile.create(path, store, time=1)
            file.take(1, "s1", "i1")
            last_seq = 0
            for values in ticks:
                changes = [
                    (CHANGE_SET_MESSAGE, seq, value)
                    for seq, value in enumerate(values, last_seq + 1)
                ]
                file.apply([AppliedBatch(last_seq, _START_MS + last_seq, changes)])
                last_seq += len(changes)
            file.checkpoint()
            snapshot = compress(take_image(file, path.with_suffix(".draft")), 1)
            if snapshot.is_tiny:
                tiny.append(snapshot)
            else:
                versions.append((store, put(bucket, snapshot, "n")))
            file.close()
            files.append(ClosedFile(name, path, last_seq))
        for number, group in enumerate(packs_of(tiny)):
            versions += put_pack(bucket, group, 1, f"n{number}")
        open_manifests(bucket).publish(versions, KeepPolicy(), 1)
    messages = sum(file.last_seq for file in files)
    file_bytes = sum(file.path.stat().st_size for file in files)
    return Stores(tuple(files), bucket_url, messages, file_bytes)

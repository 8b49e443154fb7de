"""Searches the raw bytes of folders and buckets for a value, compressed parts unpacked.

A value is found as it is, and within what holdfast, Delta and Parquet compress: zstd frames
anywhere in a file, Parquet columns, gzip. It knows nothing of what should be where, so it finds
what an erasure forgot.
"""

from __future__ import annotations

import contextlib
import gzip
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import zstandard

_ZSTD = b"\x28\xb5\x2f\xfd"
_GZIP = b"\x1f\x8b"
_PARQUET = b"PAR1"


def files_with(value: bytes, *folders: Path) -> list[Path]:
    """Return the files in `folders` that have `value`."""
    return sorted(
        path
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and holds(path.read_bytes(), value)
    )


def objects_with(value: bytes, client: Any, bucket: str) -> list[str]:
    """Return the keys of an S3 bucket whose newest version has `value`."""
    found = []
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for one in page.get("Contents", ()):
            try:
                body = client.get_object(Bucket=bucket, Key=one["Key"])["Body"].read()
            except client.exceptions.NoSuchKey:
                # Servers remove what they need no more meanwhile.
                continue
            if holds(body, value):
                found.append(one["Key"])
    return found


def holds(body: bytes, value: bytes) -> bool:
    """Tell whether bytes have a value, as they are or in a part that is compressed."""
    return any(value in part for part in _parts(body))


def _parts(body: bytes) -> Iterator[bytes]:
    yield body
    if body[:4] == _PARQUET and body[-4:] == _PARQUET:
        yield repr(pq.read_table(io.BytesIO(body)).to_pylist()).encode()
        for row in pq.read_table(io.BytesIO(body)).to_pylist():
            yield from (each for each in row.values() if isinstance(each, bytes))
    if body[:2] == _GZIP:
        yield gzip.decompress(body)
    at = body.find(_ZSTD)
    followed = 0
    while at >= 0:
        # Most places with the magic number are no frame.
        with contextlib.suppress(zstandard.ZstdError, MemoryError):
            content, end = _frame(body, at)
            if at >= followed:
                # A value may begin in one frame and end in the next.
                more = [content]
                while body[end : end + 4] == _ZSTD:
                    content, end = _frame(body, end)
                    more.append(content)
                followed = end
                content = b"".join(more)
            yield content
        at = body.find(_ZSTD, at + 1)


def _frame(body: bytes, at: int) -> tuple[bytes, int]:
    """Return the content of a frame, and where it ends."""
    reader = zstandard.ZstdDecompressor().decompressobj()
    content = reader.decompress(memoryview(body)[at:])
    return content, len(body) - len(reader.unused_data)

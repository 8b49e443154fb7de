"""How a bucket's objects and keys become files: the format of an object, and its file name.

An object is one file: a first KiB of text with its metadata, then the body. So one link or rename
publishes both, and a copy made with cp is complete. Its version is a digest of that KiB, which
contains the body's sha256 and the call's nonce, so no two puts have the same version.

The parts of a key are directories, and the last one is a file that ends with `=`, because both
`log/p1` and `log/p1/17` may be objects. Names contain lower case, digits and `_ . -`. All else is
%xx, so a case-insensitive file system keeps `A` and `a` apart, and no key can name anything
outside. A part whose name would exceed 200 bytes continues in a directory that ends with `+`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote_to_bytes

from holdfast.shared_fs.bucket.bucket_backend import ListedObject, ObjectHead
from holdfast.shared_fs.bucket.bucket_errors import ObjectDamagedError

HEADER_BYTES: Final = 1024
_FIRST_LINE: Final = b"holdfast object 1\n"
#: The longest name of a directory or object; with `=` or `+`, far below the 255 of file systems.
_NAME_BYTES: Final = 200
_ESCAPED: Final = re.compile(rb"[^a-z0-9_.-]|^\.")


def object_path(objects: Path, key: str) -> Path:
    """Return the file of an object under the directory `objects`."""
    *folders, last = key.split("/")
    *names, last = [name for part in (*folders, last) for name in names_of(part)]
    return objects.joinpath(*names, f"{last}=")


def names_of(part: str) -> list[str]:
    """Return a part of a key as one or several directory names; all but the last end with `+`."""
    escaped = _ESCAPED.sub(lambda found: b"%%%02x" % found[0][0], part.encode()).decode()
    if len(escaped) > _NAME_BYTES:
        # Cutting must not leave a piece that is `..`.
        escaped = escaped.replace(".", "%2e")
    pieces = [escaped[at : at + _NAME_BYTES] for at in range(0, len(escaped), _NAME_BYTES)]
    return [*(f"{piece}+" for piece in pieces[:-1]), pieces[-1]]


def _entries(directory: Path, begun: str) -> Iterator[tuple[bytes, bool, Path]]:
    """Yield (part, is_directory, path) for each key part in a directory that continues `begun`.

    The part of a directory ends with a slash.
    """
    try:
        found = os.scandir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return
    with found:
        for entry in found:
            name = entry.name
            if name.endswith("="):
                yield unquote_to_bytes(begun + name[:-1]), False, directory / name
            elif name.endswith("+"):
                yield from _entries(directory / name, begun + name[:-1])
            elif entry.is_dir():
                yield unquote_to_bytes(begun + name) + b"/", True, directory / name


def walk(directory: Path, base: bytes, prefix: bytes, after: bytes) -> Iterator[tuple[bytes, Path]]:
    """Yield the objects in a directory in order; all their keys begin with `base`."""
    for part, is_directory, path in sorted(_entries(directory, "")):
        key = base + part
        if not is_directory:
            if key > after and key.startswith(prefix):
                yield key, path
        elif (key > after or after.startswith(key)) and (
            key.startswith(prefix) or prefix.startswith(key)
        ):
            yield from walk(path, key, prefix, after)


def encode_header(metadata: Mapping[str, str]) -> bytes:
    lines = "".join(f"{name}:{value}\n" for name, value in metadata.items())
    header = (_FIRST_LINE + lines.encode() + b"\n").ljust(HEADER_BYTES - 1) + b"\n"
    assert len(header) == HEADER_BYTES, "check_metadata bounds it"
    return header


def version_of(header: bytes) -> str:
    return hashlib.sha256(header).hexdigest()[:32]


def read_head(key: str, descriptor: int) -> ObjectHead:
    found = os.fstat(descriptor)
    header = os.pread(descriptor, HEADER_BYTES, 0)
    lines, end, _ = header.partition(b"\n\n")
    if len(header) != HEADER_BYTES or not header.startswith(_FIRST_LINE) or not end:
        raise ObjectDamagedError(key=key, reason="its file does not begin as an object does")
    metadata = {}
    for line in lines.decode(errors="replace").split("\n")[1:]:
        name, _, value = line.partition(":")
        metadata[name] = value
    return ObjectHead(
        found.st_size - HEADER_BYTES, version_of(header), found.st_mtime_ns // 1_000_000, metadata
    )


def read_listed(key: str, path: Path) -> ListedObject:
    """Return the object of a file; a damaged one gets an empty version."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        head = read_head(key, descriptor)
    except ObjectDamagedError:
        found = os.fstat(descriptor)
        size_bytes = max(0, found.st_size - HEADER_BYTES)
        return ListedObject(key, size_bytes, "", found.st_mtime_ns // 1_000_000)
    finally:
        os.close(descriptor)
    return ListedObject(key, head.size_bytes, head.version, head.modified)

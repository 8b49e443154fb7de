"""The plan of the demo: what it writes, and what every check compares with.

There is a stream for each file of the repository, with a message for each version, and a kv with
the last version of each path. A version that cannot be stored is skipped and counted: its content
is over the inline limit, the clone lacks it, or its path is not text. Pure except for `save`,
`load` and `plan_repository`.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.cli.demo.git_history import FileVersion, blob_sizes, read_versions
from holdfast.protocol.frames import pack, unpack
from holdfast.protocol.limits import MAX_NAME_BYTES, MAX_VALUE_BYTES
from holdfast.protocol.names import check_store, quote

_MAX_REPOSITORY_BYTES: Final = 40
_DIGEST_CHARACTERS: Final = 16
#: A commit that deletes a file is a message with this status and no value.
DELETED: Final = "D"


class Skipped(StrEnum):
    """The reason why a version is not stored."""

    TOO_LARGE = "too_large"
    NOT_IN_CLONE = "not_in_clone"
    PATH_IS_NOT_TEXT = "path_is_not_text"


class PlannedMessage(NamedTuple):
    """One message. `blob` is empty for a deletion."""

    blob: str
    headers: dict[str, str]


class DemoStep(NamedTuple):
    """One step of a writer: append message `seq` of a file, or only delete the path from the kv if
    the version is not stored (`seq` 0)."""

    file: int
    seq: int


@dataclass(slots=True)
class PlannedFile:
    """A file and all its messages. Message `seq` is `messages[seq - 1]`."""

    path: str
    stream: str
    messages: list[PlannedMessage] = field(default_factory=list)
    #: The blob that the kv holds in the end, or None if the path is not in it.
    latest_blob: str | None = None


@dataclass(slots=True)
class DemoPlan:
    """Everything that the demo stores."""

    repository: str
    #: The prefix of the names of all stores of this demo.
    prefix: str
    files: list[PlannedFile] = field(default_factory=list)
    steps: list[DemoStep] = field(default_factory=list)
    #: The number of each file's writer.
    writers: list[int] = field(default_factory=list)
    commit_count: int = 0
    content_bytes: int = 0
    skipped: Counter[Skipped] = field(default_factory=Counter)

    @property
    def kv(self) -> str:
        return f"{self.prefix}latest"

    @property
    def message_count(self) -> int:
        return sum(len(one.messages) for one in self.files)

    def latest(self) -> dict[str, str]:
        """Return the blob of each path that the kv holds in the end."""
        return {one.path: one.latest_blob for one in self.files if one.latest_blob is not None}

    def save(self, path: Path) -> None:
        files = [[one.path, one.stream, one.messages, one.latest_blob] for one in self.files]
        path.write_bytes(pack([self.repository, self.prefix, files, self.steps, self.writers]))

    @classmethod
    def load(cls, path: Path) -> DemoPlan:
        """Return the parts of a saved plan that a writer or follower needs."""
        repository, prefix, files, steps, writers = unpack(path.read_bytes())
        return cls(
            repository,
            prefix,
            [
                PlannedFile(path, stream, [PlannedMessage(*one) for one in messages], latest)
                for path, stream, messages, latest in files
            ],
            [DemoStep(*step) for step in steps],
            writers,
        )


def make_plan(
    repository: Path, versions: Iterable[FileVersion], sizes: Mapping[str, int], writer_count: int
) -> DemoPlan:
    """Return the plan for `versions`, oldest first. `sizes` has the sizes of the blobs in
    the clone."""
    name = quote(repository.name or "root")[:_MAX_REPOSITORY_BYTES]
    plan = DemoPlan(str(repository), f"demo.{name}.")
    file_of_path: dict[bytes, int] = {}
    commits = set()
    for version in versions:
        commits.add(version.commit.id)
        try:
            path = version.path.decode()
        except UnicodeDecodeError:
            plan.skipped[Skipped.PATH_IS_NOT_TEXT] += 1
            continue
        index = file_of_path.get(version.path)
        if index is None:
            index = file_of_path[version.path] = len(plan.files)
            plan.files.append(PlannedFile(path, stream_name(plan.prefix, path)))
        _plan_version(plan, index, version, sizes)
    plan.commit_count = len(commits)
    plan.writers = _share_out([len(one.messages) for one in plan.files], writer_count)
    assert len({one.stream for one in plan.files}) == len(plan.files)
    return plan


def _plan_version(
    plan: DemoPlan, index: int, version: FileVersion, sizes: Mapping[str, int]
) -> None:
    file = plan.files[index]
    is_deletion = version.status == DELETED
    size_bytes = 0 if is_deletion else sizes.get(version.blob)
    if size_bytes is None or size_bytes > MAX_VALUE_BYTES:
        plan.skipped[Skipped.NOT_IN_CLONE if size_bytes is None else Skipped.TOO_LARGE] += 1
        file.latest_blob = None
        plan.steps.append(DemoStep(index, 0))
        return
    headers = {
        "commit": version.commit.id,
        "author": version.commit.author,
        "time": version.commit.time,
        "path": file.path,
        "status": version.status,
    }
    if not is_deletion:
        headers["mode"] = version.mode
    file.messages.append(PlannedMessage(version.blob, headers))
    file.latest_blob = None if is_deletion else version.blob
    plan.steps.append(DemoStep(index, len(file.messages)))
    plan.content_bytes += size_bytes


def stream_name(prefix: str, path: str) -> str:
    """Return the stream of a path: its quoted name, or the start of that and a hash if it is
    too long.

    Only names with a hash have the maximum length, so none equals a whole quoted path.
    """
    name = f"{prefix}files.{quote(path)}"
    if len(name) >= MAX_NAME_BYTES:
        digest = hashlib.sha256(path.encode()).hexdigest()[:_DIGEST_CHARACTERS]
        name = f"{name[: MAX_NAME_BYTES - len(digest) - 1]}~{digest}"
    return check_store(name)


def blob_id(value: bytes, like: str) -> str:
    """Return git's id of a content, with the hash algorithm of the id `like`."""
    head = b"blob %d\0" % len(value)
    algorithm = "sha1" if len(like) == 40 else "sha256"
    return hashlib.new(algorithm, head + value, usedforsecurity=False).hexdigest()


def _share_out(loads: list[int], count: int) -> list[int]:
    """Assign files to writers: the largest file first, each to the writer with the least so far."""
    heap = [(0, writer) for writer in range(count)]
    writers = [0] * len(loads)
    for index in sorted(range(len(loads)), key=lambda one: -loads[one]):
        load, writer = heapq.heappop(heap)
        writers[index] = writer
        heapq.heappush(heap, (load + loads[index], writer))
    return writers


def plan_repository(repository: Path, limit: int | None, writer_count: int) -> DemoPlan:
    """Plan the first `limit` versions of a repository's history. Raises GitError."""
    versions = list(itertools.islice(read_versions(repository), limit))
    blobs = dict.fromkeys(one.blob for one in versions if one.blob)
    return make_plan(repository, versions, blob_sizes(repository, blobs), writer_count)

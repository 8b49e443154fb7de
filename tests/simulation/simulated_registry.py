"""The registry of tokens on the simulated shared disk, as one process sees it.

What reads and verifies tokens is the shipped `RegisteredTokens`, on the shipped `Bucket` with its
retries; only the backend is the simulator's, since the shipped one calls the operating system. Each
object is a file, which appears whole and durable, or is replaced so. For a host the folder may hang
or fail for a while, whatever becomes of the rest of the disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from holdfast.protocol.errors import StorageFailedError
from holdfast.shared_fs.access.registry import AccessRegistry
from holdfast.shared_fs.access.token_source import RegisteredTokens
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_backend import (
    Backend,
    BucketUpload,
    ByteRange,
    Condition,
    ListedObject,
    NewObject,
    ObjectHead,
    Page,
    PreconditionError,
    Reading,
    TransientError,
)
from holdfast.shared_fs.bucket.bucket_errors import ObjectMissingError
from holdfast.shared_fs.bucket.bucket_tries import Surroundings
from tests.simulation.simulated_disk import HostDisk
from tests.simulation.simulated_threads import current_thread

#: Under `/data`, beside what the servers have there.
FOLDER: Final = "auth"


class RegistryWeather:
    """How the folder of the registry is for each host."""

    def __init__(self) -> None:
        #: Whoever asks waits until then.
        self.hangs_until: dict[str, float] = {}
        #: Who asks gets an error.
        self.failing: set[str] = set()
        #: How many faults go on.
        self.fault_count = 0

    @property
    def is_bad(self) -> bool:
        return self.fault_count > 0


class RegistryView:
    """What processes need to see the registry."""

    def __init__(self, root: Path, chance: random.Random, clock: Callable[[], float]) -> None:
        self.weather = RegistryWeather()
        self._folder = root / FOLDER
        self._chance = chance
        self._clock = clock

    def of(self, disk: HostDisk) -> AccessRegistry:
        """Return the registry as a process sees it."""
        surroundings = Surroundings(
            clock=self._clock,
            sleep=_give_way,
            chance=self._chance.random,
            nonce=lambda: f"{self._chance.getrandbits(128):032x}",
        )
        backend = _FileBackend(self._folder, disk, self.weather, self._clock)
        return AccessRegistry(Bucket(backend, surroundings=surroundings))

    def tokens_of(self, disk: HostDisk) -> RegisteredTokens:
        """Return the tokens as a server reads them."""
        return RegisteredTokens(self.of(disk), self._clock)


def _give_way(seconds: float) -> None:
    thread = current_thread()
    assert thread is not None, "the loop waits for the registry"
    thread.give_way(seconds)


class _FileBackend(Backend):
    """A file is a line of JSON, with the metadata, and the body. Versions are digests of bodies."""

    name = "file:///data/auth"
    page_count = 1000

    def __init__(
        self, folder: Path, disk: HostDisk, weather: RegistryWeather, clock: Callable[[], float]
    ) -> None:
        self._folder = folder
        self._disk = disk
        self._weather = weather
        self._clock = clock

    def put(self, key: str, body: bytes, metadata: Mapping[str, str], condition: Condition) -> str:
        path = self._path(key)
        with self._errors():
            self._disk.make_directory(path.parent)
            found = self._disk.read(path) if self._disk.exists(path) else None
            if isinstance(condition, NewObject):
                holds = found is None
            else:
                holds = found is not None and _head(found)[0].version == condition.version
            if not holds:
                raise PreconditionError
            line = json.dumps(dict(metadata), sort_keys=True).encode()
            self._disk.write_durably(path, line + b"\n" + body)
        return _version(body)

    @contextlib.contextmanager
    def read(self, key: str, wanted: ByteRange | None = None) -> Iterator[Reading]:
        head, body = self._read(key)
        start, end = (0, len(body)) if wanted is None else wanted.of(len(body))
        yield Reading(head, iter([body[start:end]]))

    def head(self, key: str) -> ObjectHead:
        return self._read(key)[0]

    def delete(self, key: str, expected_version: str | None) -> None:
        raise NotImplementedError("nothing is removed from a simulated registry")

    def list_page(self, prefix: str, start_after: str, limit: int) -> Page:
        folder, slash, start = prefix.rpartition("/")
        assert slash and not start, "the registry lists whole folders"
        with self._errors():
            keys = [f"{prefix}{name}" for name in self._disk.names(self._folder / folder)]
        keys = [key for key in keys if key > start_after and not key.endswith(".tmp")]
        heads = [(key, self.head(key)) for key in keys[:limit]]
        listed = [
            ListedObject(key, head.size_bytes, head.version, head.modified) for key, head in heads
        ]
        return Page(listed, more=len(keys) > limit)

    def begin_upload(self, key: str, metadata: Mapping[str, str]) -> BucketUpload:
        raise NotImplementedError("a registry has no large objects")

    def put_part(self, upload: BucketUpload, number: int, offset: int, body: bytes) -> str:
        raise NotImplementedError("a registry has no large objects")

    def complete_upload(
        self, upload: BucketUpload, tags: Sequence[str], condition: Condition
    ) -> str:
        raise NotImplementedError("a registry has no large objects")

    def abort_upload(self, upload: BucketUpload) -> None:
        raise NotImplementedError("a registry has no large objects")

    def close(self) -> None:
        """Nothing is kept open."""

    def _path(self, key: str) -> Path:
        return self._folder / key

    def _read(self, key: str) -> tuple[ObjectHead, bytes]:
        with self._errors():
            try:
                content = self._disk.read(self._path(key))
            except FileNotFoundError as error:
                raise ObjectMissingError(key=key) from error
        return _head(content)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Let the folder's weather have its way, and tell errors as the shipped backend does."""
        host, weather = self._disk.host, self._weather
        while (seconds := weather.hangs_until.get(host, 0.0) - self._clock()) > 0:
            _give_way(seconds)
        if host in weather.failing:
            raise TransientError("simulated EIO", uncertain=False)
        try:
            yield
        except StorageFailedError as error:
            raise TransientError(str(error), uncertain=False) from error


def _version(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:32]


def _head(content: bytes) -> tuple[ObjectHead, bytes]:
    line, _, body = content.partition(b"\n")
    return ObjectHead(len(body), _version(body), 0, json.loads(line)), body

"""A side of a comparison: the operations of holdfast and of each peer behind one interface.

The works (`works.py`) are written once against it, so that every side does the same. Each side does
an operation in its best way. If there are several ways, `variants` names them. `open_streams` and
`open_kv` make streams and kvs outside of the measured time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Final

from holdfast.bench.load import Limit, LoadReport
from holdfast.bench.processes import ProcessUsage
from holdfast.bench.read_back import ReadBackRow


class Kind(StrEnum):
    """The kind of a work."""

    APPEND = "append"
    CREATE = "create"
    SET = "set"
    GET = "get"
    READ = "read"
    FOLLOW = "follow"
    WORK = "work"


#: How many messages a worker takes and acknowledges at a time.
WORK_BATCH: Final = 100

#: Called with each message that a follower receives.
Delivered = Callable[[ReadBackRow], None]


class Side(ABC):
    """One system under load, over one connection of one client."""

    name: str

    def variants(self, kind: Kind) -> Sequence[str]:
        """Return the names of the ways to do it, at least one."""
        return ("",)

    @abstractmethod
    def usage(self) -> Mapping[str, ProcessUsage]:
        """Return the resources of its processes, by name."""

    @abstractmethod
    async def open_streams(self, names: Sequence[str]) -> None:
        """Make streams ready for messages."""

    async def drop_streams(self, names: Sequence[str]) -> None:  # noqa: B027
        """Remove streams, if idle ones would burden the following works."""

    @abstractmethod
    async def append(
        self, names: Sequence[str], concurrency: int, limit: Limit, first_number: int, variant: str
    ) -> LoadReport:
        """Append `value_of(number)` to the streams in turns. The answers are seqs."""

    @abstractmethod
    async def create(self, names: Sequence[str], concurrency: int, first_number: int) -> LoadReport:
        """Append a first message to each of these streams, which do not exist. The answers
        are seqs."""

    @abstractmethod
    async def append_paced(
        self, name: str, per_second: float, limit: Limit, first_number: int
    ) -> LoadReport:
        """Append at a fixed rate. The answers are seqs."""

    @abstractmethod
    def followed(self, name: str, delivered: Delivered) -> AbstractAsyncContextManager[None]:
        """Follow a stream from now on while the body runs."""

    @abstractmethod
    async def counts(self, names: Sequence[str]) -> list[int]:
        """Return how many messages each stream holds."""

    @abstractmethod
    async def read(self, name: str, start_seq: int, count: int, variant: str) -> list[ReadBackRow]:
        """Return `count` messages from `start_seq` on, or as many as there are."""

    @abstractmethod
    async def work(
        self, name: str, consumer: str, workers: int, limit: Limit, variant: str
    ) -> LoadReport:
        """Let workers share a new consumer of a stream. Each takes WORK_BATCH messages at a time
        and acknowledges them. An operation is one such batch; the answers are lists of rows."""

    @abstractmethod
    async def open_kv(self, name: str) -> None:
        """Make a kv ready for entries."""

    @abstractmethod
    async def set(
        self,
        name: str,
        keys: Sequence[str],
        concurrency: int,
        limit: Limit,
        first_number: int,
        variant: str,
    ) -> LoadReport:
        """Set the keys in turns to `value_of(number)`. The answers are revisions."""

    @abstractmethod
    async def get(
        self, name: str, keys: Sequence[str], concurrency: int, limit: Limit, variant: str
    ) -> LoadReport:
        """Get the keys in turns. The answers are values."""

    @abstractmethod
    async def entries(self, name: str, keys: Sequence[str]) -> dict[str, bytes]:
        """Return the values of those `keys` that exist."""

"""What the consumers of a stream need of it: reads, cursors, the tail, NATS, a clock.

The served stream (`streams/served_stream.py`) implements `StreamAccess` and hands itself to the
`ConsumerSet` of the stream, which gives it a `TailListener`. Consumers use nothing else of the
stream, so their tests run over a stream in memory.

Order. The tail listener is told of changes in their order, in a turn of the loop of its own, never
from within another call of its methods. A message counts as appended for consumers when the
listener was told of it, not before: `state()` is the state as of the last change told. Reads go to
the owner: they show at least what the tail had told when they began, and may show more. The tail
tells of a message in the turn in which its publisher's ack goes out; push consumers deliver it
then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple, Protocol

from holdfast.client.handles.serving_wire import ServedCursor, ServedMessage, ServedPage
from holdfast.gateway.jetstream.api.limits import AccountLimits
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig
from holdfast.gateway.jetstream.wire.ports import ClientPort, LeafPort


class StreamState(NamedTuple):
    """A stream as of the last change that its tail told. If it is empty, `first_seq` is
    `last_seq` + 1."""

    first_seq: int
    last_seq: int
    message_count: int


class CursorWrite(NamedTuple):
    """A change of the cursor `name`. None leaves `config` or `state` as it is; `rows` are set, then
    those with the seqs in `removed` go."""

    name: str
    config: bytes | None
    state: bytes | None
    rows: list[tuple[int, bytes]]
    removed: list[int]


class TailListener(Protocol):
    """Hears of each change of the stream's messages, once, in order."""

    def appended(self, messages: Sequence[ServedMessage]) -> None:
        """Messages were appended. Each seq is higher than all before."""

    def removed(self, seqs: Sequence[int]) -> None:
        """These messages, in order of seq, were removed: deleted, purged, expired, or beyond a
        limit. Some may have been appended and removed without having been told of; those count
        for `state()` from now on."""

    def trimmed(self, first_seq: int) -> None:
        """All messages below `first_seq` were removed."""

    def replaced(self, message: ServedMessage) -> None:
        """A native client replaced the content of a message."""

    def restarted(self) -> None:
        """Changes were missed and cannot be had. `state()` is right again, but messages of any seq
        may have come and gone."""

    def configured(self) -> None:
        """The stream has another configuration."""


class StreamAccess(ABC):
    """One stream, as its consumers use it. Every coroutine may raise HoldfastError; those that
    write may raise DeposedWriterError, after which the stream calls `ConsumerSet.close`."""

    #: The stream's name in JetStream: without dots.
    name: str
    client: ClientPort
    leaf: LeafPort
    #: The JetStream domain, or "".
    domain: str
    limits: AccountLimits

    @property
    @abstractmethod
    def config(self) -> ApiStreamConfig:
        """The configuration in force."""

    @abstractmethod
    def state(self) -> StreamState:
        """Return the numbers of the stream as of the last change that the tail told."""

    @abstractmethod
    def now_ms(self) -> int:
        """Return the time since the epoch; in the simulator, that of the simulation."""

    @abstractmethod
    async def until_writable(self) -> None:
        """Return when the leaf takes more, at once if it does."""

    @abstractmethod
    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work in a task that ends with the gateway."""

    @abstractmethod
    def listen(self, listener: TailListener) -> None:
        """Tell `listener` of every change from now on. There is one listener at a time."""

    @abstractmethod
    async def read(
        self, filters: Sequence[str], start_seq: int, limit: int, max_bytes: int
    ) -> ServedPage:
        """Return messages that match any filter (without filters: all) from `start_seq` on, in
        order of seq: at least one if there is one, else up to `limit`, and about `max_bytes`."""

    @abstractmethod
    async def read_lasts(
        self, filters: Sequence[str], up_to_seq: int, start_seq: int, limit: int
    ) -> ServedPage:
        """Return the last message of each matching subject as of `up_to_seq`, in order of seq, of
        those from `start_seq` on. `next_seq` of the page is the next page's `start_seq`."""

    @abstractmethod
    async def read_seqs(self, seqs: Sequence[int]) -> tuple[list[ServedMessage], int]:
        """Return a page of these messages, in their order and without those that are gone, and how
        many of `seqs` it answers: at least one. What does not fit is read with another call."""

    @abstractmethod
    async def count(
        self, filters: Sequence[str], start_seq: int, *, lasts: bool = False
    ) -> tuple[int, int]:
        """Return how many messages from `start_seq` on match any filter, and the last seq as of
        which that is so. With `lasts`, count the subjects whose last message is one of them."""

    @abstractmethod
    async def last_seq_of(self, filters: Sequence[str]) -> int:
        """Return the seq of the last message that matches any filter; 0 if there is none."""

    @abstractmethod
    async def seq_at(self, time_ms: int) -> int:
        """Return the seq of the first message that was stored at `time_ms` or later; if there is
        none, the one after the last seq."""

    @abstractmethod
    async def write(
        self,
        cursors: Sequence[CursorWrite],
        *,
        forgotten: Sequence[str] = (),
        removed: Sequence[int] = (),
        synced: bool = False,
    ) -> None:
        """Forget cursors, change others, and remove messages that no consumer needs any more: all
        or nothing. Return when that is durable: at the level `applied`, or `synced` if asked for or
        if messages are removed. The sizes are those of one batch at most. Calls take effect in
        their order."""

    @abstractmethod
    async def cursors(self) -> Sequence[ServedCursor]:
        """Return all cursors."""

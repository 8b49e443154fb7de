"""Live replicas, for blocking code: `holdfast.client.live.live_kv` and `live_stream`.

The copies live on the background's thread, which alone changes them: reads and writes are done there, in
some tens of microseconds and never waiting for a server; single keys of a kv are read where they lie.
Callbacks and merges are called on that thread too: they may read and write any replica, and must not
block (BackgroundThreadError), for every client of the process waits meanwhile.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import (
    Callable,
    ItemsView,
    Iterator,
    MutableMapping,
    Sequence,
    ValuesView,
)
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, overload

from holdfast.client.blocking.background import Background
from holdfast.client.live.live_entries import EntryChange
from holdfast.client.live.live_kv import LiveKV as AsyncLiveKV
from holdfast.client.live.live_messages import MessageChange
from holdfast.client.live.live_notices import Rejection
from holdfast.client.live.live_replica import LiveReplica
from holdfast.client.live.live_stream import LiveMessage
from holdfast.client.live.live_stream import LiveStream as AsyncLiveStream
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.messages import Entry, Headers, LargeValue

T = TypeVar("T")
V = TypeVar("V")


class _LiveReplica(ABC, Generic[V]):
    """What the replicas of both kinds of store have in common."""

    def __init__(self, background: Background, replica: LiveReplica[Any, V]) -> None:
        self.name = replica.name
        self._background = background
        self._replica = replica

    def __repr__(self) -> str:
        return repr(self._replica)

    @property
    def error(self) -> HoldfastError | None:
        """Why the replica no longer follows its store; None while it does."""
        return self._replica.error

    @property
    def connected(self) -> bool:
        """False while NATS is lost, and once the replica has ended: what is read may be old then,
        and what is written stays unsaved.
        """
        return self._replica.connected

    def open(self, timeout_seconds: float | None = None) -> Self:
        """Read the store, and return once the copy is complete.

        Raises what any read raises; OperationTimeoutError when nothing came for `timeout_seconds`
        (the client's, if None). A replica is opened once.
        """
        self._background.run(self._replica.open(timeout_seconds))
        return self

    def save(self, timeout_seconds: float | None = None) -> None:
        """Return once every write made before is confirmed: stored, as its durability says.

        Raises the error of the first write that was rejected since the last `save`, with the others
        in its notes; OperationTimeoutError when the time is over (the client's timeout, if None),
        in which case the writes stay unsaved and are tried further; `error` if there is one.
        """
        self._background.run(self._replica.save(timeout_seconds))

    def close(self, *, save: bool = True, timeout_seconds: float | None = None) -> None:
        """Save, unless `save` is false, and end. Idempotent.

        Raises what `save` raises, when it has ended all the same. Writes that are lost with it are
        told of in the log too (`client.unsaved`).
        """
        if not self._background.forked:
            self._background.run(self._replica.aclose(save=save, timeout_seconds=timeout_seconds))

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Save and end; an interrupted thread does not wait for it."""
        if not self._background.forked:
            self._background.run(self._replica.__aexit__(exc_type, exc, traceback))

    def on_reject(self, callback: Callable[[Rejection[V]], object]) -> Callable[[], None]:
        """Call `callback` with each Rejection, after what was there before shows again. Returns a
        function that ends that.
        """
        return self._ending(self._do(lambda: self._replica.on_reject(callback)))

    @property
    @abstractmethod
    def unsaved_count(self) -> int:
        """How many local writes are not confirmed."""

    def _do(self, function: Callable[[], T]) -> T:
        return self._background.do(function)

    def _ending(self, end: Callable[[], None]) -> Callable[[], None]:
        return lambda: self._do(end)


class LiveKV(_LiveReplica[V], MutableMapping[str, V]):
    """A local copy of a kv. Made by `Client.live_kv`; for `with`, or `open` and `close`.

    Writing raises InvalidNameError, InvalidArgumentError and TooLargeError for what could never be
    stored, BusyError when MAX_UNSAVED_WRITES keys or MAX_UNSAVED_BYTES are unsaved (`save()`
    makes room), and ConnectionFailedError when the replica is not open. Reading raises
    ValueUnreadableError for a value that its codec did not write, and LargeValueNotHeldError for a
    large one.
    """

    def __init__(self, background: Background, replica: AsyncLiveKV[V]) -> None:
        super().__init__(background, replica)
        self._kv = replica

    def __getitem__(self, key: str) -> V:
        return self._kv[key]

    def __setitem__(self, key: str, value: V) -> None:
        self._do(lambda: self._kv.__setitem__(key, value))

    def __delitem__(self, key: str) -> None:
        self._do(lambda: self._kv.__delitem__(key))

    def __iter__(self) -> Iterator[str]:
        """Iterate over the keys of now: the loop's body may change anything."""
        return self._do(lambda: iter(self._kv))

    def __len__(self) -> int:
        return len(self._kv)

    def __contains__(self, key: object) -> bool:
        return key in self._kv

    def items(self) -> ItemsView[str, V]:
        """Return the keys and values of now: the loop's body may change anything."""
        return self._do(self._kv.items)

    def values(self) -> ValuesView[V]:
        """Return the values of now, as `items`."""
        return self._do(self._kv.values)

    def clear(self) -> None:
        """Delete every key that shows."""
        self._do(self._kv.clear)

    def entry(self, key: str) -> Entry | None:
        """Return the last confirmed entry of `key`, with revision, time and headers, or None. Its
        value is as bytes. Raises ValueUnreadableError.
        """
        return self._kv.entry(key)

    @property
    def unsaved(self) -> tuple[str, ...]:
        """The keys whose local write is not confirmed, the oldest first."""
        return self._do(lambda: self._kv.unsaved)

    @property
    def unsaved_count(self) -> int:
        return self._kv.unsaved_count

    def on_change(
        self, callback: Callable[[EntryChange[V | LargeValue]], object]
    ) -> Callable[[], None]:
        """Call `callback` with each EntryChange, local ones too; a LargeValue stands for a value that
        is not held. Returns a function that ends that. What was there at the opening is no change.
        """
        return self._ending(self._do(lambda: self._kv.on_change(callback)))


class LiveStream(_LiveReplica[V], Sequence[LiveMessage[V]]):
    """A local copy of a stream. Made by `Client.live_stream`; for `with`, or `open` and `close`.

    Indices count from the oldest message that is held. Appending raises InvalidArgumentError and
    TooLargeError for what could never be stored, BusyError when MAX_UNSAVED_WRITES messages or
    MAX_UNSAVED_BYTES are unsaved (`save()` makes room), and ConnectionFailedError when the
    replica is not open. Reading raises ValueUnreadableError for a value that its codec did not write,
    and LargeValueNotHeldError for a large one.
    """

    def __init__(self, background: Background, replica: AsyncLiveStream[V]) -> None:
        super().__init__(background, replica)
        self._stream = replica

    @overload
    def __getitem__(self, index: int) -> LiveMessage[V]: ...
    @overload
    def __getitem__(self, index: slice) -> list[LiveMessage[V]]: ...
    def __getitem__(self, index: int | slice) -> LiveMessage[V] | list[LiveMessage[V]]:
        return self._do(lambda: self._stream[index])

    def __len__(self) -> int:
        return self._do(lambda: len(self._stream))

    def __iter__(self) -> Iterator[LiveMessage[V]]:
        """Iterate over the messages of now: the loop's body may change anything."""
        return self._do(lambda: iter(self._stream))

    def append(self, value: V, *, headers: Headers | None = None) -> None:
        """Append a message: it shows at once, and is stored in the background."""
        self._do(lambda: self._stream.append(value, headers=headers))

    def find(self, seq: int) -> LiveMessage[V] | None:
        """Return message `seq`, or None if it is not held."""
        return self._do(lambda: self._stream.find(seq))

    @property
    def start_seq(self) -> int:
        """From which seq on messages are held."""
        return self._stream.start_seq

    @property
    def unsaved(self) -> list[LiveMessage[V]]:
        """The messages that are not confirmed, in order."""
        return self._do(lambda: self._stream.unsaved)

    @property
    def unsaved_count(self) -> int:
        return self._stream.unsaved_count

    def on_change(
        self, callback: Callable[[MessageChange[LiveMessage[V | LargeValue]]], object]
    ) -> Callable[[], None]:
        """Call `callback` with each MessageChange, local ones too; a LargeValue stands for a value
        that is not held. Returns a function that ends that. What was there at the opening, or is
        loaded, is no change.
        """
        return self._ending(self._do(lambda: self._stream.on_change(callback)))

    def load(self, start_seq: int = 1, *, timeout_seconds: float | None = None) -> None:
        """Read the older messages from `start_seq` on and hold them too: all of them, or none if it
        raises what any read raises. `timeout_seconds` is for each page.
        """
        self._background.run(self._stream.load(start_seq, timeout_seconds=timeout_seconds))

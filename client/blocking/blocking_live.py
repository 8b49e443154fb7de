"""Live replicas, for blocking code: `holdfast.client.live.live_kv` and `live_stream`.

The replicas live on the background's thread, which alone changes them. Reads and writes run there, take
some tens of microseconds and never wait for a server; a single key of a kv is read in the calling thread.
Callbacks and merges run on that thread too. They may read and write any replica, and must not block
(BackgroundThreadError), because every client of the process waits meanwhile.
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
        """The error that ended the replica; None while it follows its store."""
        return self._replica.error

    @property
    def connected(self) -> bool:
        """False while the connection to NATS is lost, and after the replica has ended. What you
        read may be old then, and what you write stays unsaved.
        """
        return self._replica.connected

    def open(self, timeout_seconds: float | None = None) -> Self:
        """Read the store. Return once the replica is complete. A replica can be opened once.

        Raises what any read raises; OperationTimeoutError if nothing arrived for `timeout_seconds`
        (the client's timeout by default).
        """
        self._background.run(self._replica.open(timeout_seconds))
        return self

    def save(self, timeout_seconds: float | None = None) -> None:
        """Return once every earlier write is confirmed: stored, with its durability.

        Raises the error of the first write that was rejected since the last `save`, with the others
        in its notes; OperationTimeoutError after `timeout_seconds` (the client's timeout by
        default), in which case the writes stay unsaved and are still tried; `error` if there is
        one.
        """
        self._background.run(self._replica.save(timeout_seconds))

    def close(self, *, save: bool = True, timeout_seconds: float | None = None) -> None:
        """Save, unless `save` is False, and end. Idempotent.

        Raises what `save` raises; the replica has ended all the same. Writes that are lost are also
        reported in the log (`client.unsaved`).
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
        """Save and end. An interrupted thread does not wait for that."""
        if not self._background.forked:
            self._background.run(self._replica.__aexit__(exc_type, exc, traceback))

    def on_reject(self, callback: Callable[[Rejection[V]], object]) -> Callable[[], None]:
        """Call `callback` with each Rejection, once the earlier state shows again. Return a
        function that ends this.
        """
        return self._ending(self._do(lambda: self._replica.on_reject(callback)))

    @property
    @abstractmethod
    def unsaved_count(self) -> int:
        """The number of local writes that are not confirmed."""

    def _do(self, function: Callable[[], T]) -> T:
        return self._background.do(function)

    def _ending(self, end: Callable[[], None]) -> Callable[[], None]:
        return lambda: self._do(end)


class LiveKV(_LiveReplica[V], MutableMapping[str, V]):
    """A live replica of a kv: a local copy, as a dictionary (MutableMapping). Made by
    `Client.live_kv`; use it with `with`, or `open` and `close`.

    Reading never waits. A write shows at once and is sent in the background; it is *unsaved* until
    the owner has confirmed it. If the owner rejects it, the earlier value shows again and
    `on_reject` is called. Everything continues while the servers or NATS are away; what you write
    meanwhile is sent afterwards.

    A value is decoded at each read, and its dictionaries and lists are read-only. Change a copy and
    assign that.

    Writing raises InvalidNameError, InvalidArgumentError and TooLargeError for what can never be
    stored; BusyError if MAX_UNSAVED_WRITES keys or MAX_UNSAVED_BYTES are unsaved (`save()` makes
    room); ConnectionFailedError if the replica is not open. Reading raises ValueUnreadableError for
    a value that another codec wrote, and LargeValueNotHeldError for a large value.

        with hf.live_kv("settings", codec="json") as settings:
            settings["theme"] = "dark"
            print(settings.get("font"), len(settings), settings.unsaved)
            settings.save()
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
        """Iterate over the present keys: the loop's body may change anything."""
        return self._do(lambda: iter(self._kv))

    def __len__(self) -> int:
        return len(self._kv)

    def __contains__(self, key: object) -> bool:
        return key in self._kv

    def items(self) -> ItemsView[str, V]:
        """Return the present keys and values: the loop's body may change anything."""
        return self._do(self._kv.items)

    def values(self) -> ValuesView[V]:
        """Return the present values, as `items` does."""
        return self._do(self._kv.values)

    def clear(self) -> None:
        """Delete every key that shows."""
        self._do(self._kv.clear)

    def entry(self, key: str) -> Entry | None:
        """Return the last confirmed entry of `key`, with revision, time and headers, or None. Its
        value is bytes. Raises ValueUnreadableError.
        """
        return self._kv.entry(key)

    @property
    def unsaved(self) -> tuple[str, ...]:
        """The keys whose local write is not confirmed, oldest first."""
        return self._do(lambda: self._kv.unsaved)

    @property
    def unsaved_count(self) -> int:
        """The number of those keys."""
        return self._kv.unsaved_count

    def on_change(
        self, callback: Callable[[EntryChange[V | LargeValue]], object]
    ) -> Callable[[], None]:
        """Call `callback` with each EntryChange, including local ones. Return a function that ends
        this.

        A LargeValue takes the place of a value that is not held. The entries that exist when the
        replica is opened are not reported.
        """
        return self._ending(self._do(lambda: self._kv.on_change(callback)))


class LiveStream(_LiveReplica[V], Sequence[LiveMessage[V]]):
    """A live replica of a stream: a local copy, as a list (Sequence) of LiveMessage. Made by
    `Client.live_stream`; use it with `with`, or `open` and `close`.

    Reading never waits. Indices count from the oldest message that is held. An appended message
    shows at the end at once, with `seq` None, and gets its seq when it is confirmed; messages that
    others appended in between then come before it. Your messages are stored in the order of your
    calls, each once, whatever is lost or restarted meanwhile. If the owner rejects a message, it
    disappears and `on_reject` is called.

    Appending raises InvalidArgumentError and TooLargeError for what can never be stored; BusyError
    if MAX_UNSAVED_WRITES messages or MAX_UNSAVED_BYTES are unsaved (`save()` makes room);
    ConnectionFailedError if the replica is not open. Reading raises ValueUnreadableError for a
    value that another codec wrote, and LargeValueNotHeldError for a large value.

        with hf.live_stream("project.42.patches", last=1000) as patches:
            patches.append(b"...")
            print(len(patches), patches[-1].value, patches.unsaved)
            patches.save()
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
        """Iterate over the present messages: the loop's body may change anything."""
        return self._do(lambda: iter(self._stream))

    def append(self, value: V, *, headers: Headers | None = None) -> None:
        """Append a message. It shows at once and is stored in the background. `headers` maps text
        to text.
        """
        self._do(lambda: self._stream.append(value, headers=headers))

    def find(self, seq: int) -> LiveMessage[V] | None:
        """Return message `seq`, or None if it is not held."""
        return self._do(lambda: self._stream.find(seq))

    @property
    def start_seq(self) -> int:
        """The first seq from which messages are held."""
        return self._stream.start_seq

    @property
    def unsaved(self) -> list[LiveMessage[V]]:
        """The messages that are not confirmed, in order."""
        return self._do(lambda: self._stream.unsaved)

    @property
    def unsaved_count(self) -> int:
        """The number of those messages."""
        return self._stream.unsaved_count

    def on_change(
        self, callback: Callable[[MessageChange[LiveMessage[V | LargeValue]]], object]
    ) -> Callable[[], None]:
        """Call `callback` with each MessageChange, including local ones. Return a function that
        ends this.

        A LargeValue takes the place of a value that is not held. The messages that exist when the
        replica is opened, and those that `load` reads, are not reported.
        """
        return self._ending(self._do(lambda: self._stream.on_change(callback)))

    def load(self, start_seq: int = 1, *, timeout_seconds: float | None = None) -> None:
        """Read the older messages from `start_seq` on, and hold them too: all of them, or none if
        it raises.

        `timeout_seconds` applies to each page. Raises what any read raises.
        """
        self._background.run(self._stream.load(start_seq, timeout_seconds=timeout_seconds))

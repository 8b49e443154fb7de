"""The buffers of a client's subscriptions: one memory limit for all of them.

Pure. A follower holds changes for a slow consumer, and it can always ask the owner for them again.
So one limit applies to all followers of a client. If one of them needs more, the follower that has
gone longest without being emptied is shed: it drops what it holds, goes back to the last change
that its consumer took, and catches up when the consumer returns.

Invariant: all followers together hold at most the limit, or one page of one of them if that
is more. Sizes are estimates: the bytes of values, headers and keys, and Python's overhead for
the objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdfast.protocol.header_block import HeaderBlock
from holdfast.protocol.limits import PAGE_BYTES, PAGE_ROWS, SUBSCRIPTION_BUFFER_BYTES
from holdfast.protocol.messages import Change

#: A Change with its Message or Entry, and its place in a queue (CPython 3.11, 64 bits).
_CHANGE_BYTES: Final = 400
#: An estimate for a decoded value, whose size only its codec knows.
_DECODED_BYTES: Final = 1024
#: A seq or a short key in a tuple.
_ITEM_BYTES: Final = 64
#: The limit divided by this is the most that one follower may hold.
_SHARE_RATIO: Final = 8


class Buffers:
    """What all followers of one client hold."""

    def __init__(self, limit_bytes: int = SUBSCRIPTION_BUFFER_BYTES) -> None:
        self.used_bytes = 0
        self._limit_bytes = limit_bytes
        #: The followers that hold something, longest first.
        self._holders: dict[Share, None] = {}

    def share(self, shed: Callable[[], None]) -> Share:
        """Return an account for one follower. `shed` must drop all that the follower holds, and
        clear the account."""
        return Share(self, shed, self._limit_bytes // _SHARE_RATIO)

    def page_rows(self, row_bytes: int) -> int | None:
        """Return how many rows of about `row_bytes` a follower should ask for, or None for a whole
        page. The more followers hold something, the fewer rows each may ask for, so that no page is
        shed before it is used."""
        each_bytes = self._limit_bytes // (2 * (len(self._holders) + 1))
        if each_bytes >= PAGE_BYTES:
            return None
        return min(PAGE_ROWS, max(1, each_bytes // max(1, row_bytes)))

    def _added(self, share: Share, size_bytes: int) -> None:
        self.used_bytes += size_bytes
        self._holders.setdefault(share)
        while self.used_bytes > self._limit_bytes:
            longest = next((each for each in self._holders if each is not share), None)
            if longest is None:
                return
            longest.shed()
            assert longest not in self._holders

    def _removed(self, share: Share, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        if not share.held_bytes:
            self._holders.pop(share, None)


class Share:
    """The account of one follower. Made by `Buffers.share`."""

    __slots__ = ("_buffers", "_limit_bytes", "held_bytes", "shed")

    def __init__(self, buffers: Buffers, shed: Callable[[], None], limit_bytes: int) -> None:
        self.held_bytes = 0
        self.shed = shed
        self._buffers = buffers
        self._limit_bytes = limit_bytes

    def fits(self, size_bytes: int) -> bool:
        """Return whether this follower may hold `size_bytes` more. An empty one may hold
        any amount."""
        return not self.held_bytes or self.held_bytes + size_bytes <= self._limit_bytes

    def add(self, size_bytes: int) -> None:
        """Count `size_bytes` more. Other followers may be shed for it."""
        if size_bytes:
            self.held_bytes += size_bytes
            self._buffers._added(self, size_bytes)

    def remove(self, size_bytes: int) -> None:
        """Count `size_bytes` less."""
        assert size_bytes <= self.held_bytes
        self.held_bytes -= size_bytes
        self._buffers._removed(self, size_bytes)

    def clear(self) -> None:
        """Count nothing any more."""
        if self.held_bytes:
            self.remove(self.held_bytes)


def size_of(change: Change) -> int:
    """Return about how many bytes of memory a change takes."""
    held = change.message or change.entry
    if held is None:
        return _CHANGE_BYTES + _ITEM_BYTES * len(change.seqs) + sum(map(_key_bytes, change.keys))
    size_bytes = _CHANGE_BYTES
    size_bytes += len(held[1]) if isinstance(held[1], bytes) else _DECODED_BYTES
    if change.entry is not None:
        size_bytes += _key_bytes(change.entry.key)
    if type(held.headers) is HeaderBlock:
        size_bytes += len(held.headers.block)
    elif held.headers:
        size_bytes += sum(
            len(name) + len(text) + _ITEM_BYTES for name, text in held.headers.items()
        )
    return size_bytes


def _key_bytes(key: str) -> int:
    return _ITEM_BYTES + 4 * len(key)

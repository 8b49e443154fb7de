"""The last messages of a stream, so that consumers at the tail cost no reads.

All of a stream's consumers share them. From `from_seq` on, the cache has every message that the
tail has told and that is still there; it has bounds, so it forgets the oldest. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

from holdfast.client.handles.serving_wire import ServedMessage, ServedPage

#: A cache has at most so many messages and bytes: some ten milliseconds of a busy stream, and no
#: more than a MiB for each of many quiet ones.
MAX_MESSAGES: Final = 4096
MAX_BYTES: Final = 1024 * 1024
#: What a message costs besides its bytes.
_OVERHEAD_BYTES: Final = 200


class TailCache:
    """The last messages, from after `last_seq` on."""

    def __init__(self, last_seq: int) -> None:
        #: Every message from this seq on is here.
        self.from_seq = last_seq + 1
        self._messages: list[ServedMessage] = []
        # Those before this index were forgotten. They leave the list later, many at a time.
        self._start = 0
        self._size_bytes = 0
        self._forgotten_bytes = 0

    def restart(self, last_seq: int) -> None:
        """Forget everything: something was missed."""
        self.from_seq = last_seq + 1
        self._messages.clear()
        self._start = self._size_bytes = self._forgotten_bytes = 0

    def append(self, messages: Sequence[ServedMessage]) -> None:
        """Add messages that were appended to the stream."""
        kept = self._messages
        kept.extend(messages)
        self._size_bytes += sum(map(_size, messages))
        start = self._start
        while kept and (len(kept) - start > MAX_MESSAGES or self._size_bytes > MAX_BYTES):
            if start >= len(kept):
                break
            oldest = kept[start]
            start += 1
            size_bytes = _size(oldest)
            self._size_bytes -= size_bytes
            self._forgotten_bytes += size_bytes
            self.from_seq = oldest.seq + 1
        self._start = start
        if start > MAX_MESSAGES or self._forgotten_bytes > MAX_BYTES:
            del kept[:start]
            self._start = self._forgotten_bytes = 0

    def removed(self, seqs: Sequence[int]) -> None:
        """Forget messages that left the stream; `seqs` are in order."""
        if seqs[-1] >= self.from_seq:
            gone = set(seqs)
            self._keep(lambda message: message.seq not in gone)

    def trimmed(self, first_seq: int) -> None:
        """Forget all messages below a seq: they left the stream."""
        if first_seq > self.from_seq:
            self._keep(lambda message: message.seq >= first_seq)

    def replaced(self, message: ServedMessage) -> None:
        """Take the new content of a message."""
        at = self._index(message.seq)
        if at < len(self._messages) and self._messages[at].seq == message.seq:
            self._size_bytes += _size(message) - _size(self._messages[at])
            self._messages[at] = message

    def get(self, seq: int) -> ServedMessage | None:
        """Return a message if it is here."""
        at = self._index(seq)
        if at < len(self._messages) and self._messages[at].seq == seq:
            return self._messages[at]
        return None

    def page(
        self, wants: Callable[[str], bool] | None, start_seq: int, limit: int, max_bytes: int
    ) -> ServedPage | None:
        """Return messages whose subject is wanted, from `start_seq` on; None if the page would
        begin before the cache does."""
        if start_seq < self.from_seq:
            return None
        found: list[ServedMessage] = []
        size_bytes = 0
        messages = self._messages
        for at in range(self._index(start_seq), len(messages)):
            message = messages[at]
            if wants is not None and not wants(message.subject):
                continue
            if len(found) >= limit or size_bytes >= max_bytes:
                return ServedPage(found, message.seq)
            found.append(message)
            size_bytes += len(message.value) + len(message.headers)
        return ServedPage(found, None)

    def _index(self, seq: int) -> int:
        return bisect_left(self._messages, (seq,), self._start)

    def _keep(self, keep: Callable[[ServedMessage], bool]) -> None:
        self._messages = [each for each in self._messages[self._start :] if keep(each)]
        self._start = self._forgotten_bytes = 0
        self._size_bytes = sum(map(_size, self._messages))


def _size(message: ServedMessage) -> int:
    return len(message.value) + len(message.headers) + len(message.subject) + _OVERHEAD_BYTES

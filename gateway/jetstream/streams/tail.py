"""What happens to a stream's messages, told to its consumers in order. Pure.

There are two sources: the acks of this gateway's own appends, and the changes that the owner
broadcasts. The ack comes with the message at hand and the broadcast about as soon, so an append is
told by whichever is first: a push consumer delivers in the turn in which the publisher is
acknowledged. Everything else comes by the broadcasts alone, which miss nothing.

The first seq and the count are exact while a stream has no gaps but at its ends, and bounds
otherwise; `head` makes them exact again.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.client.handles.serving_wire import (
    Lost,
    Removed,
    ServedChange,
    ServedMessage,
    ServingHead,
    Trimmed,
)
from holdfast.gateway.jetstream.consumers.stream_access import StreamState, TailListener


class Tail:
    """The end of one stream, from a head of it on."""

    def __init__(self, head: ServingHead) -> None:
        #: Who is told. Until there is somebody, only the state is kept.
        self.listener: TailListener | None = None
        #: Appends that were told by their acks, until their broadcasts come.
        self._early: set[int] = set()
        #: Whether the count may be too high and the first seq too low.
        self.inexact = False
        self._read(head)

    @property
    def state(self) -> StreamState:
        """The stream as of the last change told."""
        return StreamState(self._first_seq, self._last_seq, self._count)

    def acknowledged(self, message: ServedMessage) -> None:
        """An append of this gateway was acknowledged. Those of others before it may not have been
        told yet; then it waits for its broadcast."""
        if message.seq == self._last_seq + 1:
            self._early.add(message.seq)
            self._append([message])

    def told(self, changes: Sequence[ServedChange]) -> None:
        """Take broadcast changes."""
        new: list[ServedMessage] = []
        last_seq = self._last_seq
        for change in changes:
            if type(change) is ServedMessage:
                if change.seq > last_seq:
                    last_seq = change.seq
                    new.append(change)
                    continue
                if change.seq in self._early:
                    self._early.discard(change.seq)
                    continue
            if new:
                self._append(new)
                new = []
            self._take(change)
            last_seq = self._last_seq
        if new:
            self._append(new)

    def restart(self, head: ServingHead) -> None:
        """Changes were missed: this is how the stream is now."""
        self._early.clear()
        self._read(head)
        if self.listener is not None:
            self.listener.restarted()

    def head(self, head: ServingHead) -> None:
        """Make the state exact. `head` was asked for after the last change, and nothing changed
        since."""
        if head.last_seq == self._last_seq:
            self._read(head)

    def _read(self, head: ServingHead) -> None:
        self._first_seq = head.first_seq
        self._last_seq = head.last_seq
        self._count = head.count
        self.inexact = False

    def _append(self, messages: Sequence[ServedMessage]) -> None:
        if not self._count:
            self._first_seq = messages[0].seq
        self._last_seq = messages[-1].seq
        self._count += len(messages)
        if self.listener is not None:
            self.listener.appended(messages)

    def _take(self, change: ServedChange) -> None:
        if type(change) is ServedMessage:
            if self.listener is not None:
                self.listener.replaced(change)
        elif isinstance(change, Removed):
            self._remove(change.seqs)
        elif isinstance(change, Trimmed):
            self._trim(change.end_seq)
        else:
            assert isinstance(change, Lost)

    def _remove(self, seqs: Sequence[int]) -> None:
        for seq in seqs:
            if seq > self._last_seq:
                # It was stored and removed before it was told.
                self._last_seq = seq
            else:
                self._count = max(0, self._count - 1)
            if seq == self._first_seq:
                self._first_seq += 1
                self.inexact = True
        self._early.difference_update(seqs)
        self._check_empty()
        if self.listener is not None:
            self.listener.removed(seqs)

    def _trim(self, end_seq: int) -> None:
        if end_seq >= self._last_seq:
            self._last_seq, self._count = end_seq, 0
        elif end_seq >= self._first_seq:
            dense = self._count == self._last_seq - self._first_seq + 1
            self._first_seq = end_seq + 1
            self._count = min(self._count, self._last_seq - end_seq)
            self.inexact = self.inexact or not dense
        self._early = {seq for seq in self._early if seq > end_seq}
        self._check_empty()
        if self.listener is not None:
            self.listener.trimmed(end_seq + 1)

    def _check_empty(self) -> None:
        if not self._count:
            self._first_seq = self._last_seq + 1
            self.inexact = False

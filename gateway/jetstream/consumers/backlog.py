"""What a consumer has not delivered yet: read ahead as far as it helps, the rest counted.

`messages` are the next ones, in order. `beyond` counts the matching messages that are neither
delivered nor among them. At the tail nothing is beyond, so `pending` is exact by construction:
clients that read to the end of a stream count on the 0 there. Behind it, `beyond` was counted by
the owner and follows what the tail tells; it is `dirty` when removed messages may have been among
it, and is then counted again.

A consumer of the last messages of each subject first loads those as of a seq (`lasts_up_to`), then
everything behind that seq. A subject may lose its older message to a newer one before it is loaded,
so `beyond` may be too high until all lasts were loaded, and not later.

Pages and counts are asked for one at a time. Answers reflect at least what the tail had told when
they were asked for, and may reflect more; what the tail tells until they come is noted here.

Pure. `last_seq` is always that of the stream as told by the tail. Seqs are told in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from holdfast.client.handles.serving_wire import ServedMessage
from holdfast.protocol.limits import MIB

#: Messages that are read ahead of what the clients take; fewer, if they have more bytes than these.
READ_AHEAD: Final = 256
READ_AHEAD_BYTES: Final = 4 * MIB
#: Messages up to this size are read ahead in any number.
_USUAL_BYTES: Final = READ_AHEAD_BYTES // READ_AHEAD
#: The last one that was read ahead may have to wait for the next one.
_LEAST_AHEAD: Final = 2
#: Appends that are noted while a page or a count is on its way. With more, what came is not taken
#: for the end of the stream, and another is asked for.
_MAX_NOTED: Final = 65_536


class Backlog:
    """The messages of the stream that one consumer has not delivered. It begins at `start_seq`,
    and must be counted unless nothing matches yet (`at_tail`)."""

    def __init__(self, start_seq: int, *, at_tail: bool = False, lasts_up_to: int = 0) -> None:
        self.messages: deque[ServedMessage] = deque()
        #: How many may be read ahead, by the size of those that came last.
        self.most = READ_AHEAD
        self.beyond = 0
        #: What matches and is neither delivered nor in `messages` has at least this seq.
        self.next_seq = start_seq
        #: While it is not 0, only the last message of each subject is read, up to this seq.
        self.lasts_up_to = lasts_up_to
        self._lasts_end = lasts_up_to
        #: Nothing is beyond. `next_seq` may then be lower than it could be.
        self.at_tail = at_tail
        self.dirty = not at_tail
        self.loading = False
        self.counting = False
        # Whether a page came since the last count: counting alone would never end where messages
        # are removed all the time.
        self._moved = True
        # The part of `beyond` behind the lasts.
        self._behind_lasts = 0
        # `beyond` has the appends up to this seq, told or not.
        self._counted_to = 0
        # What the tail told since a page or a count was asked for.
        self._asked_at_seq = 0
        self._appended: list[int] = []
        self._removed: set[int] = set()
        self._missed = False
        self._void = False

    @property
    def pending(self) -> int:
        """How many messages match and were not delivered."""
        return len(self.messages) + self.beyond

    @property
    def busy(self) -> bool:
        """Whether a page or a count is on its way."""
        return self.loading or self.counting

    @property
    def wants_page(self) -> bool:
        """Whether more should be read ahead, as soon as somebody wants messages."""
        return not (self.at_tail or self.busy) and len(self.messages) <= self.most // 2

    @property
    def wants_count(self) -> bool:
        """Whether it should be counted before a page is loaded."""
        return self.dirty and self._moved and not (self.at_tail or self.busy or self.lasts_up_to)

    @property
    def uncertain(self) -> bool:
        """Whether `pending` may be wrong."""
        return (self.dirty or self.counting or self.lasts_up_to > 0) and not self.at_tail

    @property
    def holds(self) -> bool:
        """Whether the messages that were read ahead must wait: until it is counted how many are
        behind them; the last one, also until more is read. If there is nothing behind it, it must
        say so, since nothing else would."""
        if not self.uncertain:
            return False
        return self.counting or self.wants_count or len(self.messages) == 1

    def lasts_after(self, delivered_seq: int) -> int:
        """Return what `lasts_up_to` is for a backlog that begins behind `delivered_seq`."""
        return self._lasts_end if delivered_seq < self._lasts_end else 0

    def undelivered_from(self, last_seq: int) -> int:
        """Return the seq below which everything was delivered or looked at."""
        if self.messages:
            return self.messages[0].seq
        return max(self.next_seq, last_seq + 1) if self.at_tail else self.next_seq

    # What the tail tells

    def appended(self, message: ServedMessage, *, wanted: bool) -> bool:
        """Note a matching message. Return whether it is read ahead, which it is with `wanted` at
        the tail."""
        seq = message.seq
        if seq <= self.lasts_up_to or (seq < self.next_seq and not self.lasts_up_to):
            return False
        size_bytes = len(message.value) + len(message.headers)
        if size_bytes > _USUAL_BYTES:
            self.most = min(self.most, _most_of(size_bytes))
        if self.at_tail and wanted and len(self.messages) < self.most:
            self.messages.append(message)
            self.next_seq = seq + 1
            return True
        if self.busy:
            self._note(seq)
        self.at_tail = False
        if seq > self._counted_to:
            self.beyond += 1
            if self.lasts_up_to:
                self._behind_lasts += 1
        return False

    def removed(self, seqs: Sequence[int], told_seq: int, *, matches_all: bool) -> None:
        """Note that messages were removed. `matches_all`: every message of the stream matches.
        Those above `told_seq` were not told of, so they count only if the owner counted them."""
        if self.messages and self.messages[0].seq <= seqs[-1]:
            gone = set(seqs)
            self.messages = deque(each for each in self.messages if each.seq not in gone)
        if self.busy:
            self._removed.update(seqs)
        if self.at_tail:
            return
        first = max(self.next_seq, self.lasts_up_to + 1)
        count = sum(first <= seq <= told_seq for seq in seqs)
        if count and matches_all and not self.counting:
            self.beyond = max(0, self.beyond - count)
            if self.lasts_up_to:
                self._behind_lasts = max(0, self._behind_lasts - count)
        elif count or seqs[-1] > told_seq:
            self.dirty = True

    def trimmed(self, first_seq: int, last_seq: int) -> None:
        """Note that all messages below `first_seq` were removed."""
        while self.messages and self.messages[0].seq < first_seq:
            self.messages.popleft()
        if first_seq > last_seq and first_seq > self.lasts_up_to:
            # The stream is empty. What is on its way is void.
            self._void = self.busy
            self.beyond = self._behind_lasts = self.lasts_up_to = 0
            self.at_tail, self.dirty = True, False
            self.next_seq = max(self.next_seq, first_seq)
        elif not self.at_tail and first_seq > self.next_seq:
            self.dirty = True
            self.next_seq = first_seq

    def replaced(self, message: ServedMessage) -> None:
        """Note that the content of a message is another one now."""
        for index, each in enumerate(self.messages):
            if each.seq == message.seq:
                self.messages[index] = message

    def release(self) -> None:
        """Forget what was read ahead: nobody wants it now."""
        if self.busy or not self.messages:
            return
        count, first_seq = len(self.messages), self.messages[0].seq
        if first_seq <= self._lasts_end:
            lasts = sum(each.seq <= self._lasts_end for each in self.messages)
            self._behind_lasts = (
                count - lasts + (self._behind_lasts if self.lasts_up_to else self.beyond)
            )
            self.lasts_up_to = self._lasts_end
        self.messages.clear()
        self.beyond += count
        self.next_seq = first_seq
        self.at_tail = False

    def restarted(self) -> None:
        """Note that the tail missed something."""
        self.at_tail = False
        self.dirty = self._missed = self._moved = True

    # Pages and counts

    def asked_for_page(self, last_seq: int) -> None:
        """Note that a page is on its way, from `next_seq` on."""
        self.loading = True
        self._asked(last_seq)

    def asked_for_count(self, last_seq: int) -> None:
        """Note that a count is on its way, from `next_seq` on."""
        self.counting = True
        self.dirty = False
        self._asked(last_seq)

    def loaded(
        self, messages: Sequence[ServedMessage], next_seq: int | None, last_seq: int
    ) -> None:
        """Take a page. `next_seq`: where the next one begins; None: nothing was behind it."""
        self.loading = False
        self._moved = True
        if self._void:
            return
        kept: Sequence[ServedMessage] = messages
        if self._removed or (messages and messages[0].seq < self.next_seq):
            kept = [
                each
                for each in messages
                if each.seq >= self.next_seq and each.seq not in self._removed
            ]
        self.messages.extend(kept)
        if messages:
            self.most = _most_of(max(len(each.value) + len(each.headers) for each in messages))
        last = messages[-1].seq if messages else 0
        if self.lasts_up_to:
            self._took_lasts(len(kept), next_seq)
        elif next_seq is None:
            self._reached_end(max(last, self._asked_at_seq))
        else:
            told = max(self._counted_to, last_seq)
            known = len(kept) if last <= told else sum(each.seq <= told for each in kept)
            self.beyond = max(0, self.beyond - known)
            self.next_seq = max(self.next_seq, next_seq)

    def counted(self, count: int, counted_to: int, behind_lasts: int = 0) -> None:
        """Take a count of what matches from `next_seq` on, as of the seq `counted_to`: of lasts
        while only those are read, and then also of what is behind them."""
        self.counting = False
        self._moved = False
        if self._void:
            return
        later = behind_lasts + sum(seq > counted_to for seq in self._appended)
        self.beyond = count + later
        self._behind_lasts = later if self.lasts_up_to else 0
        self._counted_to = counted_to
        if self._missed or self._removed:
            self.dirty = True

    def counted_lasts(self, count: int, counted_to: int) -> None:
        """Take a first count of subjects, as of the seq `counted_to`: only the last message of each
        is read up to there, and everything behind it."""
        self.lasts_up_to = self._lasts_end = counted_to
        self.counted(count, counted_to)

    def failed(self) -> None:
        """Note that what was asked for does not come."""
        if self.counting:
            self.dirty = True
        self.loading = self.counting = False

    # Inside

    def _asked(self, last_seq: int) -> None:
        self._asked_at_seq = last_seq
        self._appended = []
        self._removed = set()
        self._missed = self._void = False

    def _note(self, seq: int) -> None:
        if len(self._appended) < _MAX_NOTED:
            self._appended.append(seq)
        else:
            self._missed = True

    def _took_lasts(self, count: int, next_seq: int | None) -> None:
        """Count a page of lasts as loaded. Behind the last one, the rest of the stream begins."""
        left = max(0, self.beyond - self._behind_lasts - count)
        if next_seq is not None:
            self.beyond = left + self._behind_lasts
            self.next_seq = max(self.next_seq, next_seq)
            return
        self.beyond = self._behind_lasts
        self.next_seq = max(self.next_seq, self.lasts_up_to + 1)
        self.lasts_up_to = self._behind_lasts = 0
        self.at_tail = not (self.beyond or self.dirty or self._missed)

    def _reached_end(self, end: int) -> None:
        """Nothing was behind the page when it was read, so what is beyond came later: all that is
        above the seq `end`."""
        self.next_seq = max(self.next_seq, end + 1)
        later = [seq for seq in self._appended if seq > end and seq not in self._removed]
        if self._missed:
            self.dirty = True
            return
        self.beyond = len(later)
        self.at_tail = not later
        self.dirty = False
        self._counted_to = end


def _most_of(size_bytes: int) -> int:
    """Return how many messages of a size may be read ahead."""
    return max(_LEAST_AHEAD, min(READ_AHEAD, READ_AHEAD_BYTES // max(1, size_bytes)))

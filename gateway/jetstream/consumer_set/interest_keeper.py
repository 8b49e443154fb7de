"""Removes the messages that no consumer needs any more, where a stream keeps only those.

A work queue's message is removed when its one consumer is done with it; that of a stream with
retention `interest` when all consumers are whose filters match, or at once if there is none. The
removal is recorded together with the last ack.

Whether a filter matches takes the message's subject, which is known while the message is new; of
an older one it is read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from holdfast.client.handles.serving_wire import ServedMessage
from holdfast.gateway.jetstream.api.names import is_subset
from holdfast.gateway.jetstream.api.stream_config import RetentionPolicy
from holdfast.gateway.jetstream.consumer_set.served_consumer import ServedConsumer
from holdfast.gateway.jetstream.consumer_set.tail_cache import TailCache
from holdfast.gateway.jetstream.consumers.stream_access import StreamAccess
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.limits import PAGE_BYTES

logger = logging.getLogger("holdfast.gateway")

#: Messages that are read at a time to learn their subjects.
_PAGE: Final = 256


class InterestKeeper:
    """What is needed of one stream. `remove` removes messages."""

    def __init__(
        self,
        access: StreamAccess,
        cache: TailCache,
        consumers: Mapping[str, ServedConsumer],
        remove: Callable[[Iterable[int]], None],
    ) -> None:
        self._access = access
        self._cache = cache
        self._consumers = consumers
        self._remove = remove
        self._unknown: list[int] = []
        self._reading = False

    @property
    def keeps_all(self) -> bool:
        """Whether messages stay when all consumers are done with them."""
        return self._access.config.retention is RetentionPolicy.LIMITS

    def unwanted(self, messages: Sequence[ServedMessage]) -> None:
        """No consumer wants these new messages. A work queue keeps them for one that comes."""
        if self._access.config.retention is RetentionPolicy.INTEREST:
            self._remove(message.seq for message in messages)

    def done(self, seqs: Iterable[int]) -> None:
        """A consumer is done with these messages."""
        retention = self._access.config.retention
        if retention is RetentionPolicy.WORKQUEUE:
            self._remove(seqs)
        elif retention is RetentionPolicy.INTEREST:
            self._remove(seq for seq in seqs if not self._is_needed(seq))

    def look_through(self, start_seq: int) -> None:
        """Remove what nobody needs from `start_seq` on: a consumer is gone, or wants less."""
        if self._access.config.retention is RetentionPolicy.INTEREST:
            self._access.spawn(self._look_through(start_seq))

    async def _look_through(self, start_seq: int) -> None:
        next_seq: int | None = start_seq
        end_seq = self._access.state().last_seq
        try:
            while next_seq is not None and next_seq <= end_seq:
                page = await self._access.read((), next_seq, _PAGE, PAGE_BYTES)
                self._remove(each.seq for each in page.messages if not self._needs(each))
                next_seq = page.next_seq
        except HoldfastError as error:
            # They stay until the stream's limits remove them, or another consumer ends.
            logger.warning(
                "jetstream.interest_unknown stream=%s reason=%s", self._access.name, error
            )

    def _is_needed(self, seq: int) -> bool:
        """Return whether a consumer needs a message; also if that takes a read first."""
        unknown = False
        for each in self._consumers.values():
            needed = each.consumer.needs(seq)
            if needed is None and not each.matches_all:
                unknown = True
            elif needed is not False:
                return True
        if not unknown:
            return False
        message = self._cache.get(seq)
        if message is not None:
            return self._needs(message)
        self._unknown.append(seq)
        if not self._reading:
            self._reading = True
            self._access.spawn(self._read_unknown())
        return True

    async def _read_unknown(self) -> None:
        try:
            while self._unknown:
                seqs, self._unknown = sorted(set(self._unknown[:_PAGE])), self._unknown[_PAGE:]
                while seqs:
                    messages, count = await self._access.read_seqs(seqs)
                    self._remove(each.seq for each in messages if not self._needs(each))
                    seqs = seqs[count:]
        except HoldfastError as error:
            self._unknown.clear()
            logger.warning(
                "jetstream.interest_unknown stream=%s reason=%s", self._access.name, error
            )
        finally:
            self._reading = False

    def _needs(self, message: ServedMessage) -> bool:
        for each in self._consumers.values():
            needed = each.consumer.needs(message.seq)
            if needed is None:
                filters = each.config.filters
                needed = each.matches_all or any(
                    is_subset(message.subject, pattern) for pattern in filters
                )
            if needed:
                return True
        return False

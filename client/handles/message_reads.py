"""Reads of a stream, page by page: all of its messages, or those with certain subjects.

The owner has an index of subjects, so it reads only what matches. Every argument is checked before
anything is sent. Each page is requested while the caller handles the one before.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

from holdfast.client.wire.link import Link
from holdfast.client.wire.operations import (
    PACKED_HEAD,
    check_count,
    head_from_wire,
    message_from_wire,
    messages_from_wire,
    range_end,
    range_start,
    time_ms,
)
from holdfast.client.wire.store_queue import StoreKey
from holdfast.protocol.errors import InvalidArgumentError, MalformedFrameError
from holdfast.protocol.frames import (
    COUNT,
    GET_BY_SUBJECT,
    GET_LASTS,
    GET_MESSAGE,
    GET_MESSAGES,
    SUBJECTS,
    pack,
)
from holdfast.protocol.messages import Message, SubjectInfo
from holdfast.protocol.subject_filters import check_filter, check_filters, is_literal

#: Where the last message that matches a wildcard is looked for first, before all subjects are.
_RECENT_SEQS: Final = 256


def checked_filters(subjects: str | Sequence[str]) -> list[str]:
    """Return a filter or several as a list. Raises InvalidArgumentError, TooLargeError."""
    if isinstance(subjects, str):
        return [check_filter(subjects)]
    if not isinstance(subjects, Sequence) or not subjects:
        reason = "must be a subject or a filter, or several"
        raise InvalidArgumentError(argument="subjects", reason=reason)
    return check_filters(list(subjects))


class MessageReads:
    """The reads of one stream."""

    def __init__(self, link: Link, key: StoreKey) -> None:
        self._link = link
        self._key = key

    async def pages(
        self,
        start_seq: int,
        end_seq: int | None,
        start_time: datetime.datetime | int | None,
        last: int | None,
        limit: int | None,
        timeout_seconds: float | None,
        subjects: str | Sequence[str] | None,
    ) -> AsyncGenerator[list[Message], None]:
        """Yield what `Stream.get_all` does, page by page."""
        filters = None if subjects is None else checked_filters(subjects)
        next_seq: int | None = range_start("start_seq", start_seq)
        end_seq = range_end("end_seq", end_seq)
        for argument, number in (("last", last), ("limit", limit)):
            if number is not None:
                check_count(argument, number)
        if filters is not None and last is not None:
            reason = "last and subjects exclude each other"
            raise InvalidArgumentError(argument="last", reason=reason)
        since = time_ms(start_time)
        if last == 0 or limit == 0 or end_seq == 0:
            return

        def fetch(at: int | None, last: int | None) -> asyncio.Future[Any]:
            if filters is None:
                operation: list[Any] = [GET_MESSAGES, at, end_seq, since, limit, last]
            else:
                operation = [GET_BY_SUBJECT, filters, at, since, limit, None]
            return self._submit(operation, timeout_seconds)

        page = fetch(next_seq, last)
        while True:
            rows, next_seq = await self._page(page)
            if filters is not None and end_seq is not None:
                rows = [row for row in rows if row[0] <= end_seq]
                if next_seq is not None and next_seq > end_seq:
                    next_seq = None
            if limit is not None:
                rows = rows[:limit]
                limit -= len(rows)
            more = next_seq is not None and limit != 0
            if more:
                page = fetch(next_seq, None)
            yield messages_from_wire(rows)
            if not more:
                return

    async def last_pages(
        self,
        subjects: str | Sequence[str],
        up_to_seq: int | None,
        timeout_seconds: float | None,
    ) -> AsyncGenerator[list[Message], None]:
        """Yield what `Stream.get_lasts` does, page by page."""
        filters = checked_filters(subjects)
        up_to_seq = range_end("up_to_seq", up_to_seq)
        if up_to_seq == 0:
            return
        page = self._submit([GET_LASTS, filters, up_to_seq, None, None], timeout_seconds)
        while True:
            rows, after_seq = await self._page(page)
            if after_seq is not None:
                page = self._submit(
                    [GET_LASTS, filters, up_to_seq, after_seq, None], timeout_seconds
                )
            yield messages_from_wire(rows)
            if after_seq is None:
                return

    async def subject_pages(
        self, subjects: str, timeout_seconds: float | None
    ) -> AsyncGenerator[list[SubjectInfo], None]:
        """Yield what `Stream.subjects` does, page by page."""
        check_filter(subjects)
        page = self._submit([SUBJECTS, subjects, None, None], timeout_seconds)
        while True:
            rows, after = await self._page(page)
            if after is not None:
                page = self._submit([SUBJECTS, subjects, after, None], timeout_seconds)
            yield [SubjectInfo(*row[:4]) for row in rows]
            if after is None:
                return

    async def last(self, wanted: str, timeout_seconds: float | None) -> Message | None:
        """Return the last message that matches a subject or a filter, perhaps without its value."""
        row = await self.last_row(check_filter(wanted), timeout_seconds)
        return None if row is None else message_from_wire(row)

    async def last_row(self, wanted: str, timeout_seconds: float | None) -> list[Any] | None:
        """Return the last message that matches, as it is on the wire."""
        if is_literal(wanted):
            return await self._last_since(wanted, None, timeout_seconds)
        while True:
            wire, *_ = await self._link.call(self._key, PACKED_HEAD, False, 0, timeout_seconds)
            recent = max(0, head_from_wire(wire).last_seq - _RECENT_SEQS)
            found = await self._last_since(wanted, recent, timeout_seconds)
            if found is not None or recent == 0:
                return found
            last_seq = 0
            async for subjects in self.subject_pages(wanted, timeout_seconds):
                last_seq = max([last_seq, *(each.last_seq for each in subjects)])
            if last_seq == 0:
                return None
            row: list[Any] | None = await self._ask([GET_MESSAGE, last_seq], timeout_seconds)
            if row is not None:
                return row
            # It was removed meanwhile.

    async def count(
        self, subjects: str | Sequence[str], start_seq: int, timeout_seconds: float | None
    ) -> int:
        """Return what `Stream.count` does."""
        filters, end_seq, found = checked_filters(subjects), None, 0
        following: int | None = range_start("start_seq", start_seq)
        while True:
            # The owner counts in parts, so that a large count does not hold it up.
            operation = [COUNT, filters, following, False, end_seq]
            counted, last_seq, following = await self._ask(operation, timeout_seconds)
            found += int(counted)
            end_seq = last_seq if end_seq is None else end_seq
            if following is None:
                return found

    async def _last_since(
        self, wanted: str, after_seq: int | None, timeout_seconds: float | None
    ) -> list[Any] | None:
        last: list[Any] | None = None
        while True:
            rows, after_seq = await self._ask(
                [GET_LASTS, [wanted], None, after_seq, None], timeout_seconds
            )
            last = rows[-1] if rows else last
            if after_seq is None:
                return last

    def _submit(
        self, operation: list[Any], timeout_seconds: float | None
    ) -> asyncio.Future[Any]:
        return self._link.submit(self._key, pack(operation), False, 0, timeout_seconds)

    async def _page(self, page: asyncio.Future[Any]) -> tuple[list[Any], Any]:
        result, *_ = self._link.unwrap(await page)
        try:
            rows, following = result[:2]
        except (TypeError, ValueError) as error:
            raise MalformedFrameError(reason=f"a page: {error}") from error
        return rows, following

    async def _ask(self, operation: list[Any], timeout_seconds: float | None) -> Any:
        answer = await self._link.call(
            self._key, pack(operation), False, 0, timeout_seconds
        )
        return answer[0]

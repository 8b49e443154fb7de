"""What an owner asks a server with the role `archive`, and what it believes of the answer. Pure.

The owner's file has revision, time, size and checksum of every archived message. The ask carries
them, so the server finds the messages as the owner itself would, and the owner checks each answer
by them. Values and headers are opaque: nobody here knows or needs the keys of encrypted ones.
Invariants:

- An ask is for at most a page of messages, so what a server holds for one is bounded.
- An answer has the first messages of the ask, one at least. The owner asks again for the rest.
- A body whose checksum is not that of its message is never returned.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from holdfast.protocol.errors import HoldfastError, MalformedFrameError, TooLargeError
from holdfast.protocol.limits import (
    MAX_INTEGER,
    MAX_VALUE_BYTES,
    PAGE_BYTES,
    PAGE_ROWS,
)
from holdfast.protocol.names import check_store, check_tenant
from holdfast.protocol.work.cold_work import archive_work
from holdfast.shared_fs.store_file.applying import pack_headers
from holdfast.shared_fs.store_file.archived_blocks import (
    ArchivedMessage,
    ArchivePlace,
    Bodies,
    checksum_of,
)

_MESSAGE: Final = struct.Struct("<5q")
#: The last moment of the year 9999, which is the last one that a date can have.
_LAST_TIME: Final = 253_402_300_799_999
_DAY_MS: Final = 24 * 60 * 60 * 1000
#: What a body takes in an answer besides its bytes, and each of its headers.
_BODY_BYTES: Final = 16
_MAX_TABLE_CHARACTERS: Final = 2048
_MAX_CHARACTER_BYTES: Final = 4


class WrongAnswerError(HoldfastError):
    """An answer has something that was not archived. Never leaves the server."""

    code = "wrong_answer"
    template = "a server of the archive gave a wrong answer: {reason}"


class NotClaimedError(HoldfastError):
    """A server was asked for a part of the archive that it has not claimed, or no longer. An owner
    looks who has."""

    code = "not_claimed"
    template = "{work} is not claimed in epoch {epoch}"


class ArchiveAsk(NamedTuple):
    """Archived messages of one stream, whose bodies an owner wants."""

    place: ArchivePlace
    messages: Sequence[ArchivedMessage]
    #: How long ago the version of the table may have been looked up, at most.
    age_ms: int | None = None
    #: In which epoch the server has claimed them; None from owners of earlier versions.
    epoch: int | None = None
    #: Nobody waits: a reader is at the first message, and will come to the last.
    is_ahead: bool = False

    def to_wire(self) -> dict[str, object]:
        """Return the fields of the request."""
        packed = b"".join(
            _MESSAGE.pack(each.seq, each.revision, each.time, each.size_bytes, each.checksum)
            for each in self.messages
        )
        fields = {**self.place._asdict(), "messages": packed, "age_ms": self.age_ms}
        if self.epoch is not None:
            fields["epoch"] = self.epoch
        return {**fields, "ahead": True} if self.is_ahead else fields

    @classmethod
    def from_wire(cls, fields: Mapping[str, Any]) -> ArchiveAsk:
        """Return what an owner asks for. Raises MalformedFrameError, InvalidNameError."""
        try:
            place = ArchivePlace(fields["table"], fields["tenant"], fields["name"])
            packed, age_ms = fields["messages"], fields["age_ms"]
        except KeyError as error:
            raise MalformedFrameError(reason=f"ask of the archive: no {error}") from error
        if any(type(each) is not str for each in place) or type(packed) is not bytes:
            raise MalformedFrameError(reason="ask of the archive: three texts, and messages")
        if len(place.table) > _MAX_TABLE_CHARACTERS or not place.table.isprintable():
            raise MalformedFrameError(reason="ask of the archive: the address of a table")
        check_tenant(place.tenant)
        check_store(place.name)
        if age_ms is not None and (type(age_ms) is not int or not 0 <= age_ms <= MAX_INTEGER):
            raise MalformedFrameError(reason="ask of the archive: an age in milliseconds, or none")
        epoch = fields.get("epoch")
        if epoch is not None and (type(epoch) is not int or not 0 <= epoch <= MAX_INTEGER):
            raise MalformedFrameError(reason="ask of the archive: an epoch, or none")
        is_ahead = fields.get("ahead", False)
        if type(is_ahead) is not bool:
            raise MalformedFrameError(reason="ask of the archive: whether it is ahead")
        count, rest = divmod(len(packed), _MESSAGE.size)
        if rest or not 1 <= count <= PAGE_ROWS:
            reason = f"ask of the archive: {len(packed)} bytes of messages"
            raise MalformedFrameError(reason=reason)
        messages = [
            ArchivedMessage(seq, revision, time, size_bytes, checksum, place)
            for seq, revision, time, size_bytes, checksum in _MESSAGE.iter_unpack(packed)
        ]
        for each in messages:
            if not (
                each.seq >= 1
                and each.revision >= 1
                and 0 <= each.time <= _LAST_TIME
                and 0 <= each.size_bytes <= 2 * MAX_VALUE_BYTES
                and 0 <= each.checksum < 1 << 32
            ):
                raise MalformedFrameError(reason=f"ask of the archive: no message: {each}")
        if not is_ahead and count > 1 and sum(each.size_bytes for each in messages) > PAGE_BYTES:
            raise MalformedFrameError(reason="ask of the archive: more than a page")
        return cls(place, messages, age_ms, epoch, is_ahead)


def parts_of(messages: Sequence[ArchivedMessage]) -> Iterator[list[ArchivedMessage]]:
    """Yield messages, each once, in parts for one ask each."""
    by_place: dict[ArchivePlace, dict[tuple[int, int], ArchivedMessage]] = {}
    for message in messages:
        by_place.setdefault(message.place, {})[message.seq, message.revision] = message
    for wanted in by_place.values():
        part: list[ArchivedMessage] = []
        size_bytes = 0
        for message in wanted.values():
            is_full = len(part) == PAGE_ROWS or size_bytes + message.size_bytes > PAGE_BYTES
            if part and is_full:
                yield part
                part, size_bytes = [], 0
            part.append(message)
            size_bytes += message.size_bytes
        yield part


def work_of(zone: str, message: ArchivedMessage) -> str:
    """Return which part of the archived history of a zone a message belongs to: by stream and day,
    since tables are divided by days. So whoever pages through a day asks the same server, which has
    its rows at hand."""
    return archive_work(zone, "\n".join(message.place), message.time // _DAY_MS)


def answer_of(ask: ArchiveAsk, bodies: Bodies, limit_bytes: int) -> list[tuple[bytes, Any]]:
    """Return the bodies of an answer, as many as fit within a limit. Raises TooLargeError if it has
    not even room for the first one."""
    rows: list[tuple[bytes, Any]] = []
    size_bytes = 0
    for message in ask.messages:
        value, headers = bodies[message.seq, message.revision]
        size_bytes += _BODY_BYTES + len(value) + _size_of(headers)
        if size_bytes > limit_bytes:
            break
        rows.append((value, headers))
    if not rows:
        raise TooLargeError(what="an archived message", size=size_bytes, limit=limit_bytes)
    return rows


def bodies_of_answer(answer: Mapping[str, Any], wanted: Sequence[ArchivedMessage]) -> Bodies:
    """Return the bodies of the first of the wanted messages. Raises WrongAnswerError."""
    rows = answer.get("bodies")
    if type(rows) is not list or not 1 <= len(rows) <= len(wanted):
        raise WrongAnswerError(reason="it must have bodies, at most as many as asked for")
    found: dict[tuple[int, int], Any] = {}
    for message, row in zip(wanted, rows, strict=False):
        try:
            value, headers = row
            is_right = (
                type(value) is bytes
                and (headers is None or _are_headers(headers))
                and checksum_of(value, pack_headers(headers)) == message.checksum
            )
        except (HoldfastError, TypeError, ValueError, AttributeError) as error:
            raise WrongAnswerError(reason=f"seq {message.seq}: {error!r}") from error
        if not is_right:
            raise WrongAnswerError(reason=f"seq {message.seq} differs from what was archived")
        found[message.seq, message.revision] = value, headers
    return found


def _are_headers(headers: Any) -> bool:
    """Tell whether these may be headers: a map of texts, or bytes."""
    if type(headers) is bytes:
        return True
    return type(headers) is dict and all(
        type(name) is str and type(text) is str for name, text in headers.items()
    )


def _size_of(headers: Any) -> int:
    """Return the most that headers take."""
    if type(headers) is not dict:
        return len(headers or b"")
    return sum(
        _BODY_BYTES + _MAX_CHARACTER_BYTES * (len(name) + len(text))
        for name, text in headers.items()
    )

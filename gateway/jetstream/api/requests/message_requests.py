"""Requests for stored messages: STREAM.MSG.GET and direct gets, single, in batches, several lasts.

STREAM.MSG.GET is answered with JSON, so what is wrong with it is an ApiError. A direct get is
answered with messages, so what is wrong there is a StatusError.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast.gateway.jetstream.api import bodies, errors
from holdfast.gateway.jetstream.api.headers import StatusError


@dataclass(frozen=True, slots=True)
class GetMessage:
    """Which messages; 0, "" and None are not set. Times are nanoseconds since 1970."""

    seq: int = 0
    last_by_subj: str = ""
    next_by_subj: str = ""
    start_time: int | None = None
    no_hdr: bool = False
    batch: int = 0
    max_bytes: int = 0
    multi_last: tuple[str, ...] = ()
    up_to_seq: int = 0
    up_to_time: int | None = None

    @property
    def is_batch(self) -> bool:
        """Whether messages are counted, and followed by an end: 204 EOB."""
        return self.batch > 0 or bool(self.multi_last)

    @classmethod
    def parse(cls, body: bytes) -> GetMessage:
        """The body of STREAM.MSG.GET. Raises ApiError."""
        found = bodies.parse_object(body)
        if not found:
            raise errors.bad_request()
        request = cls(**bodies.read(_SCHEMA, found))
        nothing = not (request.seq or request.last_by_subj or request.next_by_subj)
        if request.batch > 0 or request.max_bytes > 0:
            raise errors.bad_request()
        if (nothing and request.start_time is None) or request._conflicts():
            raise errors.bad_request()
        return request

    @classmethod
    def parse_direct(cls, body: bytes) -> GetMessage:
        """The body of DIRECT.GET without a subject. Raises StatusError."""
        if not body:
            raise StatusError(408, "Empty Request")
        request = cls._lenient(body)
        if not (
            request.seq
            or request.last_by_subj
            or request.next_by_subj
            or request.multi_last
            or request.start_time is not None
        ):
            raise StatusError(408, "Empty Request")
        if (
            request._conflicts()
            or (request.last_by_subj and (request.batch > 0 or request.multi_last))
            or (request.next_by_subj and request.multi_last)
            or (request.up_to_seq and request.up_to_time is not None)
        ):
            raise StatusError(408, "Bad Request")
        return request

    @classmethod
    def parse_direct_last(cls, subject: str, body: bytes) -> GetMessage:
        """DIRECT.GET with a subject: its last message. Raises StatusError."""
        if not body:
            return cls(last_by_subj=subject)
        request = cls._lenient(body)
        if request != cls(no_hdr=request.no_hdr, max_bytes=request.max_bytes):
            raise StatusError(408, "Bad Request")
        return cls(last_by_subj=subject, no_hdr=request.no_hdr)

    @classmethod
    def _lenient(cls, body: bytes) -> GetMessage:
        try:
            return cls(**bodies.read(_SCHEMA, bodies.parse(body), strict=False))
        except errors.ApiError:
            raise StatusError(408, "Malformed Request") from None

    def _conflicts(self) -> bool:
        at_time = self.start_time is not None
        if self.last_by_subj:
            return bool(self.seq or at_time or self.next_by_subj)
        return bool(self.seq and at_time)


_SCHEMA: Final[bodies.Schema] = {
    "seq": bodies.uint64,
    "last_by_subj": bodies.text,
    "next_by_subj": bodies.text,
    "start_time": bodies.time,
    "no_hdr": bodies.boolean,
    "batch": bodies.int64,
    "max_bytes": bodies.int64,
    "multi_last": bodies.texts,
    "up_to_seq": bodies.uint64,
    "up_to_time": bodies.time,
}

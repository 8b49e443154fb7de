"""Republishing: what is stored is published again, to a subject of its own.

The gateway publishes it, so a pattern that lets publishers choose the destination must not let them
reach subjects that are the gateway's alone: `reserved` are those that nothing is republished to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from holdfast.gateway.jetstream.api import headers, names
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig
from holdfast.gateway.jetstream.api.subject_transform import SubjectTransform
from holdfast.gateway.jetstream.api.times import format_ms
from holdfast.protocol.subject_filters import overlaps


class Republished(NamedTuple):
    """What is published."""

    subject: str
    block: bytes
    payload: bytes


class Republisher:
    """What one stream's configuration says about it; nothing, if it has no republish."""

    def __init__(self, config: ApiStreamConfig, reserved: Sequence[str] = ()) -> None:
        """The configuration is a checked one."""
        asked = config.republish
        self._stream: Final = config.name
        self._reserved: Final = tuple(reserved)
        self._headers_only: Final = asked is not None and asked.headers_only
        self._transform: Final = (
            SubjectTransform(asked.src, asked.dest) if asked is not None and asked.dest else None
        )

    @property
    def is_used(self) -> bool:
        return self._transform is not None

    def destination(self, subject: str) -> str | None:
        """Return where a message of this subject is published again; None: it is not."""
        if self._transform is None:
            return None
        destination = self._transform.apply(subject)
        if destination is None or not names.is_literal(destination):
            return None
        if any(overlaps(destination, each) for each in self._reserved):
            return None
        return destination

    def made(
        self,
        destination: str,
        stored: tuple[int, str, int, bytes, bytes],
        last_seq: int,
    ) -> Republished:
        """Return what is published. `stored` is the message: seq, subject, time in milliseconds,
        headers, payload; `last_seq` that of the subject before it, 0 if it is the first.
        """
        seq, subject, time_ms, block, payload = stored
        fields = [
            ("Nats-Stream", self._stream),
            ("Nats-Subject", subject),
            ("Nats-Sequence", str(seq)),
            ("Nats-Time-Stamp", format_ms(time_ms)),
            ("Nats-Last-Sequence", str(last_seq)),
        ]
        if self._headers_only:
            fields.append(("Nats-Msg-Size", str(len(payload))))
            payload = b""
        return Republished(destination, headers.append(block, fields), payload)

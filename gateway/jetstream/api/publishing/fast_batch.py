"""Fast batches on the wire: a message's place in one, and what its publisher is told. Pure.

A publisher writes the place into the reply subject of each message:

    <inbox>.<batch id>.<most messages between two acks>.<ok or fail>.<sequence>.<operation>.$FI

It is told of its progress by flow messages, on the same subjects, and gets one PubAck at the end.
This is ADR-50 of NATS, fast ingest.
"""

from __future__ import annotations

import json
from enum import IntEnum
from typing import Final, NamedTuple

from holdfast.gateway.jetstream.api.errors import ApiError

#: The end of the reply subject of a message of a fast batch.
FAST_SUFFIX: Final = ".$FI"
_GAPS: Final = {"ok": True, "fail": False}
_DEFAULT_FLOW: Final = 10
_MAX_FLOW: Final = 65_535
_MAX_SEQUENCE: Final = (1 << 64) - 2
_MAX_DIGITS: Final = 20


class FastOperation(IntEnum):
    """What a message of a fast batch does. The numbers are those of the wire."""

    START = 0
    APPEND = 1
    COMMIT = 2
    #: End the batch, and do not store this message.
    COMMIT_WITHOUT_MESSAGE = 3
    #: Tell how far the batch is, and keep it alive. The message is not stored.
    PING = 4


_OPERATIONS: Final = {int(each): each for each in FastOperation}


class FastPart(NamedTuple):
    """A message's place in a fast batch."""

    batch_id: str
    sequence: int
    #: The most messages between two acks.
    flow: int
    #: The batch goes on if messages are lost or refused.
    gap_ok: bool
    operation: FastOperation


def fast_part(reply: str) -> FastPart | None:
    """Return what a reply subject with FAST_SUFFIX says; None if that makes no sense."""
    fields = reply.removesuffix(FAST_SUFFIX).rsplit(".", 5)
    if len(fields) < 6:
        return None
    _, batch_id, flow, gap, sequence_text, operation_text = fields
    operation = _OPERATIONS.get(_number(operation_text))
    sequence = _number(sequence_text)
    gap_ok = _GAPS.get(gap)
    if operation is None or gap_ok is None or not 1 <= sequence <= _MAX_SEQUENCE:
        return None
    if operation is FastOperation.START and sequence != 1:
        return None
    if sequence == 1 and operation in (
        FastOperation.APPEND,
        FastOperation.COMMIT_WITHOUT_MESSAGE,
    ):
        return None
    wanted = _number(flow)
    most = min(wanted, _MAX_FLOW) if wanted > 0 else _DEFAULT_FLOW
    return FastPart(batch_id, sequence, most, gap_ok, operation)


def flow_ack(sequence: int, messages: int) -> bytes:
    """All messages up to `sequence` are stored, as far as they were neither lost nor refused. The
    next ack comes after so many `messages`."""
    return b'{"type":"ack","seq":%d,"msgs":%d}' % (sequence, messages)


def flow_gap(expected: int, sequence: int) -> bytes:
    """The messages from `expected` on, up to before `sequence`, did not arrive."""
    return b'{"type":"gap","last_seq":%d,"seq":%d}' % (expected, sequence)


def flow_error(sequence: int, error: ApiError) -> bytes:
    """Message `sequence` was refused."""
    text = json.dumps(error.to_json(), separators=(",", ":"))
    return b'{"type":"err","seq":%d,"error":%b}' % (sequence, text.encode())


def _number(text: str) -> int:
    """Return a number, -1 for what is none."""
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        return -1
    return int(text)

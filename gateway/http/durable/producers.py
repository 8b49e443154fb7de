"""Idempotent producers: which appends are new, repeated, too early or of the past.

Pure. A producer has an id of its own choice, an epoch that it raises when it starts anew, and in
each epoch it numbers its requests 0, 1, 2, ... The state of each is stored with the append that it
belongs to, in one batch, so a retry is recognised whichever gateway and owner it reaches.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum
from typing import Final

import msgpack

from holdfast.gateway.http.problems import ProblemError

#: Numbers above are not exact in JavaScript.
MAX_NUMBER: Final = (1 << 53) - 1
MAX_ID_BYTES: Final = 512


@dataclass(frozen=True, slots=True)
class Producing:
    """What one append says of its producer."""

    id: str
    epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class Producer:
    """What a stream knows of a producer: its epoch, and its last seq in it."""

    epoch: int
    seq: int


class ProducerVerdict(Enum):
    """What an append is."""

    NEW = "new"
    REPEATED = "repeated"


def judge(known: Producer | None, producing: Producing) -> ProducerVerdict:
    """Tell whether an append is new or repeated. Raises ProblemError if it is neither."""
    epoch, seq = producing.epoch, producing.seq
    if known is not None and epoch < known.epoch:
        raise ProblemError(
            403,
            "stale_epoch",
            "a later epoch of this producer has written",
            {"Producer-Epoch": str(known.epoch)},
        )
    if known is None or epoch > known.epoch:
        if seq != 0:
            if known is None:
                raise _gap(0, seq)
            raise ProblemError(400, "invalid_producer", "a new epoch begins with Producer-Seq 0")
        return ProducerVerdict.NEW
    if seq <= known.seq:
        return ProducerVerdict.REPEATED
    if seq > known.seq + 1:
        raise _gap(known.seq + 1, seq)
    return ProducerVerdict.NEW


def row_of(producing: Producing) -> tuple[int, bytes]:
    """Return the row of a cursor that records an append."""
    return key_of(producing.id), msgpack.packb([producing.id, producing.epoch, producing.seq])


def key_of(producer_id: str) -> int:
    """Return the number of a producer's row."""
    digest = hashlib.blake2b(producer_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2


def producer_of(data: bytes) -> tuple[str, Producer]:
    """Return what a row records. Raises ValueError."""
    producer_id, epoch, seq = msgpack.unpackb(data)
    return producer_id, Producer(epoch, seq)


def _gap(expected: int, received: int) -> ProblemError:
    headers = {"Producer-Expected-Seq": str(expected), "Producer-Received-Seq": str(received)}
    return ProblemError(409, "producer_gap", "requests of this producer are missing", headers)

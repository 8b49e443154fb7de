"""What a part tells about itself, as bytes: compact, bounded, and checked where it is read.

A report is a msgpack map `{started, host, numbers}` after the version byte, as everything on the
wire. `numbers` maps a name to its value; or, if it has labels, to a map from their text
(`stage=queue,level=synced`) to the value. A value is a number, or a list for a histogram: the sum,
then the counts of its buckets. Unknown names pass; a report that has anything else wrong is refused
as a whole. What does not fit is left out, from the end of the names' order on, and counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from holdfast.protocol.errors import InvalidArgumentError, MalformedFrameError
from holdfast.protocol.frames import decode, encode, pack
from holdfast.protocol.limits import (
    MAX_INTEGER,
    MAX_LABELS_CHARACTERS,
    MAX_NAME_BYTES,
    MAX_REPORT_BYTES,
    MAX_REPORT_SAMPLES,
)
from holdfast.protocol.monitoring.counting import Statistics
from holdfast.protocol.monitoring.metrics import METRICS
from holdfast.protocol.monitoring.samples import HistogramValue, Sample, SampleValue

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,79}")
_LABEL: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
#: The values of labels are words: codes, stages, kinds of requests.
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9_.:/ -]{0,63}")
_MAX_BUCKETS: Final = 64
#: Room for everything but the numbers.
_ENVELOPE_BYTES: Final = 300


class ToldNumbers(NamedTuple):
    """What a part told."""

    started_at_ms: int
    host: str
    samples: tuple[Sample, ...]


def encode_report(statistics: Statistics) -> bytes:
    """Return what a part tells of itself now: at most MAX_REPORT_BYTES."""
    numbers: dict[str, Any] = {}
    left = MAX_REPORT_BYTES - _ENVELOPE_BYTES
    for sample in statistics.samples():
        wire = _to_wire(sample.value)
        text = ",".join(f"{label}={value}" for label, value in sample.labels)
        # A name is there once for all of its labels; counting it each time errs on the safe side.
        left -= len(pack([sample.name, text, wire]))
        if left < 0:
            break
        if sample.labels:
            numbers.setdefault(sample.name, {})[text] = wire
        else:
            numbers[sample.name] = wire
    return encode(
        {
            "started": statistics.started_at_ms,
            "host": statistics.host[:MAX_NAME_BYTES],
            "numbers": numbers,
        }
    )


def decode_report(payload: object) -> ToldNumbers:
    """Return what a peer tells. Raises InvalidArgumentError, UnsupportedVersionError,
    MalformedFrameError, whatever it holds."""
    if type(payload) is not bytes or len(payload) > MAX_REPORT_BYTES:
        raise _wrong(f"it must be at most {MAX_REPORT_BYTES} bytes")
    fields = decode(payload, max_length=MAX_REPORT_SAMPLES)
    if type(fields) is not dict:
        raise MalformedFrameError(reason="statistics must be a map")
    started, host, numbers = fields.get("started"), fields.get("host"), fields.get("numbers")
    if type(started) is not int or not 0 <= started < MAX_INTEGER:
        raise _wrong("`started` must be milliseconds since the epoch")
    if type(host) is not str or len(host) > MAX_NAME_BYTES or not host.isprintable():
        raise _wrong("`host` must be a short text")
    if type(numbers) is not dict:
        raise _wrong("`numbers` must be a map")
    samples = tuple(_samples(numbers))
    if len(samples) > MAX_REPORT_SAMPLES:
        raise _wrong(f"there are more than {MAX_REPORT_SAMPLES} numbers")
    return ToldNumbers(started, host, samples)


def _samples(numbers: dict[Any, Any]) -> Iterator[Sample]:
    for name, value in numbers.items():
        if type(name) is not str or not _NAME.fullmatch(name):
            raise _wrong("a name must be lower-case words")
        if type(value) is dict:
            for text, labelled in value.items():
                yield Sample(name, _labels(text), _value(name, labelled))
        else:
            yield Sample(name, (), _value(name, value))


def _labels(text: object) -> tuple[tuple[str, str], ...]:
    if type(text) is not str or len(text) > MAX_LABELS_CHARACTERS:
        raise _wrong("labels must be a short text")
    found = []
    for each in text.split(","):
        label, equals, value = each.partition("=")
        if not equals or not _LABEL.fullmatch(label) or not _LABEL_VALUE.fullmatch(value):
            raise _wrong("a label must be name=value")
        found.append((label, value))
    if len({label for label, _ in found}) < len(found):
        raise _wrong("a label is there twice")
    return tuple(found)


def _value(name: str, wire: object) -> SampleValue:
    if type(wire) is list:
        return _histogram(name, wire)
    return _number(wire)


def _histogram(name: str, wire: list[object]) -> HistogramValue:
    if not 2 <= len(wire) <= _MAX_BUCKETS:
        raise _wrong("a histogram must be a sum and counts")
    counts = tuple(_count(each) for each in wire[1:])
    metric = METRICS.get(name)
    ends = metric.buckets if metric is not None else ()
    return HistogramValue(ends if len(counts) == len(ends) + 1 else (), counts, _number(wire[0]))


def _count(wire: object) -> int:
    if type(wire) is not int or not 0 <= wire < MAX_INTEGER:
        raise _wrong("a count must be a number from 0 on")
    return wire


def _number(wire: object) -> int | float:
    if (type(wire) is not int and type(wire) is not float) or not -MAX_INTEGER < wire < MAX_INTEGER:
        raise _wrong("a value must be a finite number")
    return wire


def _to_wire(value: SampleValue) -> object:
    if isinstance(value, HistogramValue):
        return [_sent(value.total), *value.counts]
    return _sent(value)


def _sent(value: float) -> int | float:
    """Return a number as it is sent: whole ones as integers, and nothing that peers refuse."""
    if not math.isfinite(value) or abs(value) >= MAX_INTEGER:
        return 0
    return int(value) if value == int(value) else value


def _wrong(reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(argument="statistics", reason=reason)

"""A mirror's origin, or one of the sources of a stream, as it is configured.

A mirror has the messages of its origin at their seqs. A sourced stream appends the messages of
several origins to its own, each with a header that says where it comes from. Which messages, and
under which subjects, is said here; `source_checks.py` says what may be copied, and `origins/` how.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast.gateway.jetstream.api import bodies
from holdfast.gateway.jetstream.api.subject_transform import SubjectTransform
from holdfast.gateway.jetstream.api.times import format_time

#: The header of a copied message: name, seq, filters, destinations and subject at its origin.
SOURCE_HEADER: Final = "Nats-Stream-Source"
#: The filter that every subject matches.
ALL_SUBJECTS: Final = ">"
#: Between the filters of a source with several transforms, as nats-server joins them.
_BETWEEN: Final = "\f"


@dataclass(frozen=True, slots=True)
class SourceTransform:
    """Messages whose subject matches `src` are copied, under the subject that `dest` makes of it.
    An empty `src` is `>`, and an empty `dest` leaves the subject as it is."""

    src: str = ""
    dest: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the transform as replies tell it."""
        return {"src": self.src, "dest": self.dest}


@dataclass(frozen=True, slots=True)
class StreamSource:
    """One origin, as it is configured. As parsed it may have anything."""

    name: str = ""
    opt_start_seq: int = 0
    #: Nanoseconds since 1970; None is the beginning.
    opt_start_time: int | None = None
    filter_subject: str = ""
    subject_transforms: tuple[SourceTransform, ...] = ()
    #: Refused: a stream of another account or domain.
    external: tuple[tuple[str, str], ...] = ()
    #: A push consumer of the origin that is to deliver the messages: its name and subject.
    consumer: tuple[tuple[str, str], ...] = ()

    @property
    def filters(self) -> tuple[str, ...]:
        """The subjects of the origin that are copied; none is all of them."""
        if self.subject_transforms:
            found = tuple(each.src or ALL_SUBJECTS for each in self.subject_transforms)
        else:
            found = (self.filter_subject,) if self.filter_subject else ()
        return () if ALL_SUBJECTS in found else found

    @property
    def index_name(self) -> str:
        """What tells the sources of one stream apart: name, filters and destinations."""
        name, consumer = self.name, dict(self.consumer)
        if consumer:
            name += f":C={hashlib.sha256(consumer.get('name', '').encode()).hexdigest()[:8]}"
        return " ".join((name, *self._filters_and_destinations))

    def header(self, seq: int, subject: str) -> str:
        """Return the value of SOURCE_HEADER of a message with this seq and subject."""
        return " ".join((self.name, str(seq), *self._filters_and_destinations, subject))

    @property
    def _filters_and_destinations(self) -> tuple[str, str]:
        transforms = self.subject_transforms
        if not transforms:
            return self.filter_subject or ALL_SUBJECTS, ALL_SUBJECTS
        return (
            _BETWEEN.join(each.src or ALL_SUBJECTS for each in transforms),
            _BETWEEN.join(each.dest or ALL_SUBJECTS for each in transforms),
        )

    def transformer(self) -> Callable[[str], str]:
        """Return what makes the subject of a copy of that of its origin."""
        transforms = [
            SubjectTransform(each.src, each.dest) for each in self.subject_transforms if each.dest
        ]

        def transform(subject: str) -> str:
            for each in transforms:
                made = each.apply(subject)
                if made is not None:
                    return made
            return subject

        return transform

    def to_json(self) -> dict[str, Any]:
        """Return the source as replies tell it."""
        made: dict[str, Any] = {"name": self.name}
        if self.opt_start_seq:
            made["opt_start_seq"] = self.opt_start_seq
        if self.opt_start_time is not None:
            made["opt_start_time"] = format_time(self.opt_start_time)
        if self.filter_subject:
            made["filter_subject"] = self.filter_subject
        if self.subject_transforms:
            made["subject_transforms"] = [each.to_json() for each in self.subject_transforms]
        if self.external:
            made["external"] = dict(self.external)
        if self.consumer:
            made["consumer"] = dict(self.consumer)
        return made


def origin_info(
    source: StreamSource, lag: int = 0, active_ns: int = -1, error: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return what replies tell of a mirror's origin or of a source: how many messages are not
    copied yet, how long ago it was heard of (-1: never), and what is wrong."""
    made: dict[str, Any] = {"name": source.name, "lag": lag, "active": active_ns}
    if error is not None:
        made["error"] = dict(error)
    if source.filter_subject:
        made["filter_subject"] = source.filter_subject
    if source.subject_transforms:
        made["subject_transforms"] = [each.to_json() for each in source.subject_transforms]
    return made


_TRANSFORM: Final[bodies.Schema] = {"src": bodies.text, "dest": bodies.text}
_EXTERNAL: Final[bodies.Schema] = {"api": bodies.text, "deliver": bodies.text}
_CONSUMER: Final[bodies.Schema] = {"name": bodies.text, "deliver_subject": bodies.text}


def _list(value: Any, path: str) -> list[Any]:
    if type(value) is not list:
        bodies.texts(value, path)
    found: list[Any] = value
    return found


def _transforms(value: Any, path: str) -> tuple[SourceTransform, ...]:
    return tuple(
        SourceTransform(**bodies.read(_TRANSFORM, each, f"{path}.{at}"))
        for at, each in enumerate(_list(value, path))
    )


def _pairs(**fields: str) -> tuple[tuple[str, str], ...]:
    return tuple(fields.items())


_SOURCE: Final[bodies.Schema] = {
    "name": bodies.text,
    "opt_start_seq": bodies.uint64,
    "opt_start_time": bodies.time,
    "filter_subject": bodies.text,
    "subject_transforms": _transforms,
    "external": bodies.nested(_EXTERNAL, _pairs),
    "consumer": bodies.nested(_CONSUMER, _pairs),
}

#: Reads one source of a body.
source: Final = bodies.nested(_SOURCE, StreamSource)


def sources(value: Any, path: str) -> tuple[StreamSource, ...]:
    """The reader of a list of sources."""
    return tuple(source(each, f"{path}.{at}") for at, each in enumerate(_list(value, path)))

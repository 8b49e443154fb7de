"""What a stream may copy from others. Each check raises the ApiError that nats-server answers with.

Only streams of the same account are copied: `external` is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.gateway.jetstream.api import errors, names, subject_lists
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig
from holdfast.gateway.jetstream.api.stream_source import ALL_SUBJECTS, StreamSource
from holdfast.gateway.jetstream.api.subject_transform import TransformError, check_transform
from holdfast.protocol.subject_filters import overlaps

#: Sources of one stream. Each is followed by its gateway, and has a cursor in the stream's store.
MAX_SOURCES: Final = 256


def check_mirror(config: ApiStreamConfig) -> None:
    """Check a mirror by itself. Raises ApiError."""
    mirror = config.mirror
    if mirror is None:
        return
    if config.first_seq > 0:
        raise errors.mirror_with_first_seq()
    if config.subjects:
        raise errors.mirror_with_subjects()
    if config.sources:
        raise errors.mirror_with_sources()
    if config.allow_msg_counter:
        raise errors.mirror_with_counters()
    if config.allow_atomic:
        raise errors.mirror_with_atomic_publish()
    if config.allow_batched:
        raise errors.mirror_with_batch_publish()
    if config.allow_msg_schedules:
        raise errors.mirror_with_schedules()
    if mirror.consumer and not _is_consumer(mirror):
        raise errors.mirror_consumer_invalid()
    if mirror.filter_subject and mirror.subject_transforms:
        raise errors.mirror_multiple_filters()
    if config.subject_delete_marker_ttl > 0:
        raise errors.stream_invalid_config("subject delete markers forbidden on mirrors")
    _check_filter_count((mirror,), _OF_MIRRORS)
    _check_transforms(mirror, _OF_MIRRORS)
    if not mirror.external and not _is_stream(mirror.name):
        raise errors.mirror_invalid_name()
    _check_here(mirror)


def check_sources(config: ApiStreamConfig) -> None:
    """Check the sources of a stream by themselves. Raises ApiError."""
    if not config.sources:
        return
    if config.allow_msg_schedules:
        raise errors.source_with_schedules()
    if config.allow_msg_counter:
        raise errors.stream_invalid_config("sources of counters are not supported")
    if len(config.sources) > MAX_SOURCES:
        raise errors.stream_invalid_config(f"at most {MAX_SOURCES} sources are supported")
    _check_filter_count(config.sources, _OF_SOURCES)
    index_names: set[str] = set()
    consumers: set[tuple[str, str]] = set()
    for each in config.sources:
        if not _is_stream(each.name):
            raise errors.source_invalid_name()
        if each.index_name in index_names:
            raise errors.source_duplicate()
        index_names.add(each.index_name)
        if each.filter_subject and each.subject_transforms:
            raise errors.source_multiple_filters()
        _check_transforms(each, _OF_SOURCES)
        if each.consumer:
            if not _is_consumer(each):
                raise errors.source_consumer_invalid()
            key = each.name, dict(each.consumer)["name"]
            if key in consumers:
                raise errors.source_consumer_duplicate()
            consumers.add(key)
        _check_here(each)


#: Finds the configuration of another stream of the account; None if there is none.
FindStream = Callable[[str], ApiStreamConfig | None]


def check_origins(config: ApiStreamConfig, find: FindStream) -> None:
    """Check a stream against those that it copies, as far as they exist: they need not. Raises
    ApiError."""
    for each in config.origins:
        origin = find(each.name)
        if origin is not None and 0 < config.max_msg_size < origin.max_msg_size:
            raise (
                errors.mirror_max_msg_size_too_big()
                if config.mirror is not None
                else errors.source_max_msg_size_too_big()
            )
    _check_cycle(config, find)


def _check_cycle(config: ApiStreamConfig, find: FindStream) -> None:
    """Raise 10052 if messages would come back to a stream from which they came."""
    visited: set[str] = set()
    #: Each is visited once: there may be more ways to a stream than anybody can go.
    found = {config.name}
    waiting = deque([config])
    while waiting:
        here = waiting.popleft()
        visited.add(here.name)
        for each in here.sources:
            if each.name in visited:
                wanted = each.filter_subject
                if not wanted or any(overlaps(subject, wanted) for subject in here.subjects):
                    raise errors.stream_invalid_config("detected cycle")
            elif each.name not in found:
                found.add(each.name)
                waiting += _existing(find, each.name)
        if here.mirror is not None:
            if here.mirror.name in visited:
                raise errors.stream_invalid_config("detected cycle")
            if here.mirror.name not in found:
                found.add(here.mirror.name)
                waiting += _existing(find, here.mirror.name)


def _existing(find: FindStream, name: str) -> list[ApiStreamConfig]:
    origin = find(name)
    return [] if origin is None else [origin]


def _is_stream(name: str) -> bool:
    return names.is_name(name) and len(name) <= names.MAX_NAME_LENGTH


def _is_consumer(given: StreamSource) -> bool:
    consumer = dict(given.consumer)
    return (
        _is_stream(consumer.get("name", ""))
        and names.is_literal(consumer.get("deliver_subject", ""))
        and not given.opt_start_seq
        and given.opt_start_time is None
        and not given.filter_subject
    )


@dataclass(frozen=True, slots=True)
class _TransformErrors:
    filter: Callable[[object], errors.ApiError]
    destination: Callable[[object], errors.ApiError]
    overlap: Callable[[], errors.ApiError]
    #: Whether two filters overlap, as nats-server has it.
    collide: Callable[[str, str], bool]


_OF_MIRRORS: Final = _TransformErrors(
    errors.mirror_invalid_filter,
    errors.mirror_invalid_transform,
    errors.mirror_overlapping_filters,
    overlaps,
)
_OF_SOURCES: Final = _TransformErrors(
    errors.source_invalid_filter,
    errors.source_invalid_transform,
    errors.source_overlapping_filters,
    names.is_subset,
)


def _check_filter_count(origins: Sequence[StreamSource], of: _TransformErrors) -> None:
    too_many = subject_lists.excess([each for given in origins for each in _filters_of(given)])
    if too_many:
        raise of.filter(too_many)


def _filters_of(given: StreamSource) -> list[str]:
    return [each.src or ALL_SUBJECTS for each in given.subject_transforms]


def _check_transforms(given: StreamSource, of: _TransformErrors) -> None:
    if given.filter_subject and not names.is_subject(given.filter_subject):
        raise of.filter(f"invalid subject {given.filter_subject}")
    for each in given.subject_transforms:
        if each.src and not names.is_subject(each.src):
            raise of.filter(f"invalid subject {each.src}")
        try:
            if each.dest:
                check_transform(each.src, each.dest)
        except TransformError as error:
            raise of.destination(error) from error
    if subject_lists.first_meeting(_filters_of(given), of.collide) is not None:
        raise of.overlap()


def _check_here(given: StreamSource) -> None:
    if given.external:
        raise errors.stream_invalid_config("external streams are not supported")

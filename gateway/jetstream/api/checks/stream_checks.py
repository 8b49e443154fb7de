"""What the configuration of a stream may be, when it is created and when it changes.

Each check raises the ApiError that nats-server answers with, and the checks come in its order, so
that a request with two mistakes gets the same answer. What was left out is filled in, so the result
is a complete configuration: two that mean the same are equal.

The gateway refuses what it does not do, rather than accept and ignore it: mirrors and sources of
other accounts, fast ingest, more than one replica, and placement by tags or in a cluster of another
name. What it accepts though it means less here is told in docs/jetstream.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from holdfast.gateway.jetstream.api import errors, names, subject_lists
from holdfast.gateway.jetstream.api.checks.source_checks import check_mirror, check_sources
from holdfast.gateway.jetstream.api.limits import (
    MAX_DESCRIPTION_LENGTH,
    MAX_METADATA_LENGTH,
    NO_LIMITS,
    AccountLimits,
)
from holdfast.gateway.jetstream.api.stream_config import (
    ApiStreamConfig,
    DiscardPolicy,
    PersistMode,
    Republish,
    RetentionPolicy,
    StorageType,
    StreamPlacement,
)
from holdfast.gateway.jetstream.api.subject_transform import TransformError, check_transform
from holdfast.gateway.jetstream.api.times import MILLISECOND, MINUTE, SECOND
from holdfast.protocol.subject_filters import overlaps

_DEFAULT_DUPLICATE_WINDOW: Final = 2 * MINUTE
_MIN_DURATION: Final = 100 * MILLISECOND
_MAX_REPLICAS: Final = 5
#: Subjects that carry the API, and what of them a stream may have nevertheless.
_OF_THE_API: Final = ("$JS.>", "$JSC.>", "$NRG.>")
_EVENTS: Final = "$JS.EVENT.>"
_OF_THE_SYSTEM: Final = "$SYS.>"
_OF_ACCOUNTS: Final = "$SYS.ACCOUNT.>"
#: The limits of which 0, and everything below -1, become -1.
_COUNTS: Final = ("max_msgs", "max_msgs_per_subject", "max_bytes", "max_msg_size", "max_consumers")


def check_create(
    config: ApiStreamConfig,
    limits: AccountLimits = NO_LIMITS,
    *,
    pedantic: bool = False,
    reserved: Sequence[str] = (),
) -> ApiStreamConfig:
    """Return the configuration of a new stream, complete. Raises ApiError.

    `reserved` are subjects that no stream may have, `hf.>` that is: a stream of them would take in
    the frames that carry its own messages.
    """
    if "/" in config.name or "\\" in config.name:
        raise errors.stream_name_separators()
    if config.sealed:
        raise errors.stream_invalid_config("stream configuration for create can not be sealed")
    if config.mirror_direct and config.mirror is None:
        raise errors.stream_invalid_config("stream has no mirror but does have mirror direct")
    return _checked(config, limits, pedantic, reserved)


def check_update(
    old: ApiStreamConfig,
    new: ApiStreamConfig,
    limits: AccountLimits = NO_LIMITS,
    *,
    pedantic: bool = False,
    reserved: Sequence[str] = (),
) -> ApiStreamConfig:
    """Return what the configuration of a stream becomes, complete. Raises ApiError."""
    config = _checked(new, limits, pedantic, reserved)
    if config.name != old.name:
        raise errors.stream_invalid_config("stream configuration name must match original")
    if config.storage is not old.storage:
        raise _not_changeable("change storage type")
    workqueue = RetentionPolicy.WORKQUEUE
    if config.retention is not old.retention and workqueue in (config.retention, old.retention):
        raise _not_changeable("change retention policy to/from workqueue")
    if old.sealed and not config.sealed:
        raise _not_changeable("unseal a sealed stream")
    if old.deny_delete and not config.deny_delete:
        raise _not_changeable("cancel deny message deletes")
    if old.deny_purge and not config.deny_purge:
        raise _not_changeable("cancel deny purge")
    if old.allow_msg_ttl and not config.allow_msg_ttl:
        raise errors.stream_invalid_config("message TTL status can not be disabled")
    if old.allow_msg_counter != config.allow_msg_counter:
        raise _not_changeable("change message counter setting")
    if old.allow_msg_schedules and not config.allow_msg_schedules:
        raise errors.stream_invalid_config("message schedules can not be disabled")
    if old.persist_mode is not config.persist_mode:
        raise _not_changeable("change persist mode")
    if config.mirror is not None and config.mirror != old.mirror:
        raise errors.stream_mirror_not_updatable()
    if config.sealed:
        return replace(
            config,
            max_age=0,
            discard=DiscardPolicy.NEW,
            deny_delete=True,
            deny_purge=True,
            allow_rollup_hdrs=False,
        )
    return config


def check_consumers(
    old: ApiStreamConfig, new: ApiStreamConfig, consumers: Iterable[tuple[str, int, int]]
) -> None:
    """Check that the consumers of a stream keep to its new limits of consumers. Raises ApiError.

    Of each consumer: its name, inactive_threshold and max_ack_pending.
    """
    threshold = new.consumer_limits.inactive_threshold
    pending = new.consumer_limits.max_ack_pending
    if old.consumer_limits == new.consumer_limits:
        return
    beyond = [
        name
        for name, its_threshold, its_pending in consumers
        if 0 < threshold < its_threshold or 0 < pending < its_pending
    ]
    if beyond:
        raise errors.stream_update_failed(
            f"change to limits violates consumers: {', '.join(beyond)}"
        )


def _not_changeable(what: str) -> errors.ApiError:
    return errors.stream_invalid_config(f"stream configuration update can not {what}")


def _checked(
    config: ApiStreamConfig, limits: AccountLimits, pedantic: bool, reserved: Sequence[str]
) -> ApiStreamConfig:
    _check_texts(config)
    config = _with_counts(config, pedantic)
    config = _with_durations(config, pedantic)
    _check_features(config)
    config = _with_permissions(config, pedantic)
    check_mirror(config)
    check_sources(config)
    if not (config.subjects or config.origins):
        config = replace(config, subjects=(config.name,))
    _check_subjects(config, reserved)
    _check_account(config, limits)
    config = _with_mappings(config, pedantic, reserved)
    if config.num_replicas > 1:
        raise errors.stream_replicas_not_supported()
    return config


def _check_texts(config: ApiStreamConfig) -> None:
    if not names.is_name(config.name):
        raise errors.stream_invalid_config(
            "stream name is required and can not contain '.', '*', '>', '\\', '/'"
        )
    if len(config.name) > names.MAX_NAME_LENGTH:
        raise errors.stream_invalid_config(
            f"stream name is too long, maximum allowed is {names.MAX_NAME_LENGTH}"
        )
    if len(config.description) > MAX_DESCRIPTION_LENGTH:
        raise errors.stream_invalid_config(
            f"stream description is too long, maximum allowed is {MAX_DESCRIPTION_LENGTH}"
        )
    if sum(len(name) + len(text) for name, text in config.metadata.items()) > MAX_METADATA_LENGTH:
        raise errors.stream_invalid_config(
            f"stream metadata exceeds maximum size of {MAX_METADATA_LENGTH} bytes"
        )


def _with_counts(config: ApiStreamConfig, pedantic: bool) -> ApiStreamConfig:
    if config.num_replicas > _MAX_REPLICAS:
        raise errors.stream_invalid_config(f"maximum replicas is {_MAX_REPLICAS}")
    if config.num_replicas < 0:
        raise errors.replicas_negative()
    counts: dict[str, Any] = {}
    for name in _COUNTS:
        value = getattr(config, name)
        if pedantic and value < -1:
            raise errors.pedantic(f"{name} must be set to -1")
        counts[name] = value if value > 0 else -1
    return replace(config, num_replicas=config.num_replicas or 1, **counts)


def _with_durations(config: ApiStreamConfig, pedantic: bool) -> ApiStreamConfig:
    age, window = config.max_age, config.duplicate_window
    if age < 0:
        raise errors.stream_invalid_config("max age can not be negative")
    if 0 < age < _MIN_DURATION:
        raise errors.stream_invalid_config("max age needs to be >= 100ms")
    if window == 0 and config.origins:
        # What is copied is told apart by its place in the origin.
        return config
    if window == 0:
        window = _DEFAULT_DUPLICATE_WINDOW
        if 0 < age < window:
            if pedantic:
                raise errors.pedantic("duplicate window cannot be bigger than max age")
            window = age
    if window < 0:
        raise errors.stream_invalid_config("duplicates window can not be negative")
    if 0 < age < window:
        raise errors.stream_invalid_config("duplicates window can not be larger then max age")
    if window < _MIN_DURATION:
        raise errors.stream_invalid_config("duplicates window needs to be >= 100ms")
    return replace(config, duplicate_window=window)


def _check_features(config: ApiStreamConfig) -> None:
    if config.deny_purge and config.allow_rollup_hdrs:
        raise errors.stream_invalid_config("roll-ups require the purge permission")
    if config.allow_msg_counter:
        if config.discard is DiscardPolicy.NEW:
            raise errors.stream_invalid_config("counter stream cannot use discard new")
        if config.allow_msg_ttl:
            raise errors.stream_invalid_config("counter stream cannot use message TTLs")
        if config.allow_msg_schedules:
            raise errors.stream_invalid_config("counter stream cannot use message schedules")
        if config.retention is not RetentionPolicy.LIMITS:
            raise errors.stream_invalid_config("counter stream can only use limits retention")
    if config.discard_new_per_subject:
        if config.discard is not DiscardPolicy.NEW:
            raise errors.stream_invalid_config(
                "discard new per subject requires discard new policy to be set"
            )
        if config.max_msgs_per_subject <= 0:
            raise errors.stream_invalid_config(
                "discard new per subject requires max msgs per subject > 0"
            )


def _with_permissions(config: ApiStreamConfig, pedantic: bool) -> ApiStreamConfig:
    """Switch on what markers and schedules need."""
    marker_ttl = config.subject_delete_marker_ttl
    if marker_ttl < 0:
        raise errors.stream_invalid_config("subject delete marker TTL must not be negative")
    if marker_ttl:
        if marker_ttl < SECOND:
            raise errors.stream_invalid_config(
                "subject delete marker TTL must be at least 1 second"
            )
        if pedantic and not config.allow_msg_ttl:
            raise errors.stream_invalid_config(
                "subject delete marker cannot be set if message TTLs are disabled"
            )
        if pedantic and not config.allow_rollup_hdrs:
            raise errors.stream_invalid_config(
                "subject delete marker cannot be set if roll-ups are disabled"
            )
        config = _with_rollups(replace(config, allow_msg_ttl=True))
    if config.allow_msg_schedules:
        if config.discard is DiscardPolicy.NEW:
            raise errors.stream_invalid_config("message scheduling cannot use discard new")
        if pedantic and not config.allow_rollup_hdrs:
            raise errors.stream_invalid_config(
                "message scheduling cannot be set if roll-ups are disabled"
            )
        config = _with_rollups(config)
    if config.persist_mode is PersistMode.ASYNC:
        if config.storage is not StorageType.FILE:
            raise errors.stream_invalid_config(
                "async persist mode is only supported on file storage"
            )
        if config.num_replicas > 1:
            raise errors.stream_invalid_config(
                "async persist mode is not supported on replicated streams"
            )
        if config.allow_atomic:
            raise errors.stream_invalid_config(
                "async persist mode is not supported with atomic batch publish"
            )
    return config


def _with_rollups(config: ApiStreamConfig) -> ApiStreamConfig:
    if config.allow_rollup_hdrs:
        return config
    return replace(config, allow_rollup_hdrs=True, deny_purge=False)


def _check_subjects(config: ApiStreamConfig, reserved: Sequence[str]) -> None:
    too_many = subject_lists.excess(config.subjects)
    if too_many:
        raise errors.stream_invalid_config(too_many)
    meeting = subject_lists.first_meeting(config.subjects, overlaps)
    for subject in config.subjects:
        if not names.is_subject(subject):
            raise errors.stream_invalid_config("invalid subject")
        if not config.no_ack:
            if subject == ">":
                raise errors.stream_invalid_config(
                    "capturing all subjects requires no-ack to be true"
                )
            api = any(overlaps(subject, each) for each in _OF_THE_API)
            if api and not names.is_subset(subject, _EVENTS):
                raise errors.stream_invalid_config(
                    "subjects that overlap with jetstream api require no-ack to be true"
                )
            system = overlaps(subject, _OF_THE_SYSTEM)
            if system and not names.is_subset(subject, _OF_ACCOUNTS):
                raise errors.stream_invalid_config(
                    "subjects that overlap with system api require no-ack to be true"
                )
        for each in reserved:
            if overlaps(subject, each):
                raise errors.stream_invalid_config(
                    f'subject "{subject}" overlaps with "{each}", which is reserved'
                )
        if meeting is not None and subject == meeting[0]:
            raise errors.stream_invalid_config(
                f'subject "{subject}" overlaps with "{meeting[1]}"'
            )


def _check_account(config: ApiStreamConfig, limits: AccountLimits) -> None:
    memory = config.storage is StorageType.MEMORY
    limit = limits.memory_max_stream_bytes if memory else limits.storage_max_stream_bytes
    if limits.max_bytes_required and config.max_bytes <= 0:
        raise errors.max_bytes_required()
    if 0 < limit < config.max_bytes:
        raise errors.max_stream_bytes_exceeded()
    if 0 < limits.max_consumers < config.max_consumers:
        raise errors.maximum_consumers()


def _with_mappings(
    config: ApiStreamConfig, pedantic: bool, reserved: Sequence[str]
) -> ApiStreamConfig:
    mapping = config.subject_transform
    if mapping is not None:
        if mapping.src and not names.is_subject(mapping.src):
            raise errors.transform_invalid_source(f"invalid subject {mapping.src}")
        try:
            if mapping.dest:
                check_transform(mapping.src, mapping.dest)
        except TransformError as error:
            raise errors.transform_invalid_destination(error) from error
    if config.republish is not None:
        republish = _republish(config, config.republish, pedantic)
        if any(names.is_subset(republish.dest, each) for each in reserved):
            raise errors.stream_invalid_config(
                f'republish destination "{republish.dest}" is reserved'
            )
        config = replace(config, republish=republish)
    if config.placement is not None:
        config = replace(config, placement=_placement(config.placement))
    return config


def _republish(config: ApiStreamConfig, asked: Republish, pedantic: bool) -> Republish:
    if not asked.src:
        if pedantic:
            raise errors.pedantic("republish source can not be empty")
        asked = replace(asked, src=">")
    mapping = config.subject_transform
    if asked.src == asked.dest == ">" and mapping and config.subjects == (mapping.src,):
        # From everything to everything is a cycle, unless a transform moves all subjects away.
        if pedantic:
            raise errors.pedantic("implicit republish based on subject transform")
        asked = replace(asked, src=mapping.dest, dest=mapping.dest)
    if any(overlaps(asked.dest, each) for each in config.subjects):
        raise errors.stream_invalid_config(
            "stream configuration for republish destination forms a cycle"
        )
    try:
        if asked.dest:
            check_transform(asked.src, asked.dest)
    except TransformError as error:
        raise errors.stream_invalid_config(
            "stream configuration for republish with transform from "
            f"'{asked.src}' to '{asked.dest}' not valid"
        ) from error
    return asked


def _placement(asked: StreamPlacement) -> StreamPlacement | None:
    if asked.preferred:
        raise errors.stream_invalid_config("preferred server not permitted in placement")
    if asked.tags or asked.cluster:
        raise errors.no_peers("no suitable peers for placement")
    return None

"""What the configuration of a consumer may be: by itself, beside others, and when it changes.

Each check raises the ApiError that nats-server answers with, in its order. `complete` fills in what
was left out, so that two configurations that mean the same are equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from holdfast.gateway.jetstream.api import errors, names, subject_lists
from holdfast.gateway.jetstream.api.consumer_config import (
    AckPolicy,
    ApiConsumerConfig,
    DeliverPolicy,
    PriorityPolicy,
)
from holdfast.gateway.jetstream.api.limits import (
    MAX_ACK_PENDING,
    MAX_DESCRIPTION_LENGTH,
    MAX_METADATA_LENGTH,
    NO_LIMITS,
    AccountLimits,
)
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig, RetentionPolicy
from holdfast.gateway.jetstream.api.times import (
    MILLISECOND,
    MINUTE,
    SECOND,
    format_duration,
)
from holdfast.protocol.subject_filters import overlaps

DEFAULT_ACK_WAIT: Final = 30 * SECOND
DEFAULT_MAX_ACK_PENDING: Final = 1000
DEFAULT_MAX_WAITING: Final = 512
#: Of a consumer that is not durable.
DEFAULT_INACTIVE_THRESHOLD: Final = 5 * SECOND
#: How long a pinned client may be silent.
DEFAULT_PINNED_TTL: Final = 2 * MINUTE
_MIN_HEARTBEAT: Final = 100 * MILLISECOND
#: Of a consumer that is acknowledged by flow control.
FLOW_ACKS_HEARTBEAT: Final = SECOND
_REDELIVERING: Final = frozenset((AckPolicy.ALL, AckPolicy.EXPLICIT))
_GROUP_NAME: Final = re.compile(r"[a-zA-Z0-9/_=-]{1,16}")
_SAMPLING: Final = re.compile(r"\+?[0-9]{1,18}%?")
#: The settings of which less than nothing is nothing.
_NOT_NEGATIVE: Final = (
    *("max_waiting", "max_batch", "max_expires", "max_bytes", "idle_heartbeat"),
    *("inactive_threshold", "priority_timeout"),
)
#: What a consumer keeps, with nats-server's words for it.
_NOT_CHANGEABLE: Final = (
    ("deliver_policy", "deliver policy"),
    ("mem_storage", "storage type"),
    ("opt_start_seq", "start sequence"),
    ("opt_start_time", "start time"),
    ("ack_policy", "ack policy"),
    ("replay_policy", "replay policy"),
    ("idle_heartbeat", "heart beats"),
    ("flow_control", "flow control"),
)


def is_group_name(text: str) -> bool:
    """Return whether a priority group may have this name."""
    return _GROUP_NAME.fullmatch(text) is not None


def complete(
    config: ApiConsumerConfig,
    stream: ApiStreamConfig,
    limits: AccountLimits = NO_LIMITS,
    *,
    pedantic: bool = False,
) -> ApiConsumerConfig:
    """Return the configuration with its defaults, checked by itself. Raises ApiError."""
    if config.num_replicas > 1:
        raise errors.stream_replicas_not_supported()
    config = _with_defaults(config, stream, limits, pedantic)
    _check_names(config)
    _check_acks(config)
    if config.is_push:
        _check_push(config, stream)
    else:
        _check_pull(config, stream)
    _check_limits(config, stream, limits)
    _check_filters(config)
    _check_start(config)
    _check_details(config)
    _check_priority(config)
    if not config.is_durable and not config.inactive_threshold:
        config = replace(config, inactive_threshold=DEFAULT_INACTIVE_THRESHOLD)
    return config


def check_create(
    config: ApiConsumerConfig,
    stream: ApiStreamConfig,
    others: Mapping[str, ApiConsumerConfig],
    limits: AccountLimits = NO_LIMITS,
) -> None:
    """Check a complete configuration beside the other consumers of the stream. Raises ApiError."""
    allowed = stream.max_consumers
    if allowed <= 0 or 0 < limits.max_consumers < allowed:
        allowed = limits.max_consumers
    if 0 < allowed <= len(others):
        raise errors.maximum_consumers()
    if stream.retention is not RetentionPolicy.WORKQUEUE:
        return
    if config.ack_policy not in (AckPolicy.EXPLICIT, AckPolicy.FLOW_CONTROL):
        raise errors.consumer_workqueue_requires_ack()
    if config.deliver_policy is not DeliverPolicy.ALL:
        raise errors.consumer_workqueue_not_deliver_all()
    if others:
        if not config.filters:
            raise errors.consumer_workqueue_several_unfiltered()
        _check_unique(config, others)


def check_update(
    old: ApiConsumerConfig,
    new: ApiConsumerConfig,
    stream: ApiStreamConfig,
    others: Mapping[str, ApiConsumerConfig],
    *,
    deliver_subject_in_use: bool,
) -> ApiConsumerConfig:
    """Return what the configuration of a consumer becomes. Both are complete. Raises ApiError.

    Whether somebody listens on the old deliver subject decides whether there may be a new one. A
    pause is not changed: that is a request of its own.
    """
    new = replace(new, pause_until=old.pause_until)
    if stream.retention is RetentionPolicy.WORKQUEUE:
        _check_unique(new, others)
    if new == old:
        return new
    for name, words in _NOT_CHANGEABLE:
        if getattr(old, name) != getattr(new, name):
            raise errors.consumer_create_failed(f"{words} can not be updated")
    if old.deliver_subject != new.deliver_subject:
        if not old.deliver_subject:
            raise errors.consumer_create_failed("can not update pull consumer to push based")
        if not new.deliver_subject:
            raise errors.consumer_create_failed("can not update push consumer to pull based")
        if deliver_subject_in_use:
            raise errors.consumer_name_in_use()
    if old.max_waiting != new.max_waiting:
        raise errors.consumer_create_failed("max waiting can not be updated")
    return new


def _check_unique(config: ApiConsumerConfig, others: Mapping[str, ApiConsumerConfig]) -> None:
    """In a work queue each message is for one consumer."""
    filters = config.filters
    if not filters:
        return
    if any(not other.filters for other in others.values()):
        raise errors.consumer_workqueue_not_unique()
    too_many = subject_lists.excess_between(filters, (each.filters for each in others.values()))
    if too_many:
        raise errors.stream_invalid_config(too_many)
    for other in others.values():
        if subject_lists.any_meets(filters, other.filters, overlaps):
            raise errors.consumer_workqueue_not_unique()


def _with_defaults(
    config: ApiConsumerConfig, stream: ApiStreamConfig, limits: AccountLimits, pedantic: bool
) -> ApiConsumerConfig:
    values = {name: getattr(config, name) for name in _NOT_NEGATIVE}
    values |= {"max_deliver": config.max_deliver, "max_ack_pending": config.max_ack_pending}
    if pedantic:
        _check_pedantic(config, stream)
    for name in _NOT_NEGATIVE:
        values[name] = max(values[name], 0)
    for name in ("max_deliver", "max_ack_pending"):
        values[name] = max(values[name], -1)
    values["max_deliver"] = values["max_deliver"] or -1
    if not config.is_push:
        values["max_waiting"] = values["max_waiting"] or DEFAULT_MAX_WAITING
    acks = config.ack_policy is not AckPolicy.NONE
    ack_wait = config.ack_wait
    if not ack_wait and config.ack_policy in _REDELIVERING:
        ack_wait = DEFAULT_ACK_WAIT
    if config.backoff:
        ack_wait = config.backoff[0]
    bounds = stream.consumer_limits
    values["max_ack_pending"] = values["max_ack_pending"] or bounds.max_ack_pending
    values["inactive_threshold"] = values["inactive_threshold"] or bounds.inactive_threshold
    if not values["max_ack_pending"] and acks:
        pending = DEFAULT_MAX_ACK_PENDING
        if 0 < limits.max_ack_pending < pending:
            pending = limits.max_ack_pending
        values["max_ack_pending"] = pending
    if config.priority_policy is PriorityPolicy.PINNED_CLIENT:
        values["priority_timeout"] = values["priority_timeout"] or DEFAULT_PINNED_TTL
    if config.ack_policy is AckPolicy.FLOW_CONTROL and not pedantic:
        values |= {"flow_control": True, "idle_heartbeat": FLOW_ACKS_HEARTBEAT}
    return replace(config, ack_wait=ack_wait, **values)


def _check_pedantic(config: ApiConsumerConfig, stream: ApiStreamConfig) -> None:
    """Refuse what would be filled in otherwise."""
    for name in ("max_deliver", "max_ack_pending"):
        if getattr(config, name) < -1:
            raise errors.pedantic(f"{name} must be set to -1")
    for name in _NOT_NEGATIVE:
        if getattr(config, name) < 0:
            raise errors.pedantic(f"{name} must not be negative")
    if config.backoff and config.ack_wait != config.backoff[0]:
        raise errors.pedantic("first backoff value has to equal batch AckWait")
    for name in ("max_ack_pending", "inactive_threshold"):
        if not getattr(config, name) and getattr(stream.consumer_limits, name) > 0:
            raise errors.pedantic(f"{name} must be set if it's configured in stream limits")


def _check_names(config: ApiConsumerConfig) -> None:
    for kind, name in (("name", config.name), ("durable name", config.durable_name)):
        if name and not names.is_name(name):
            raise errors.stream_invalid_config(
                f"consumer {kind} can not contain '.', '*', '>', '\\', '/'"
            )
        if len(name) > names.MAX_NAME_LENGTH:
            raise errors.consumer_name_too_long(names.MAX_NAME_LENGTH)
    if config.num_replicas < 0:
        raise errors.replicas_negative()


def _check_acks(config: ApiConsumerConfig) -> None:
    if any(wait < 0 for wait in config.backoff):
        raise errors.consumer_backoff_negative()
    if config.ack_wait < 0:
        raise errors.consumer_ack_wait_negative()
    if config.ack_policy is AckPolicy.FLOW_CONTROL:
        _check_flow_acks(config)
    if config.backoff and -1 != config.max_deliver < len(config.backoff):
        raise errors.consumer_max_deliver_backoff()
    if len(config.description) > MAX_DESCRIPTION_LENGTH:
        raise errors.consumer_description_too_long(MAX_DESCRIPTION_LENGTH)


def _check_flow_acks(config: ApiConsumerConfig) -> None:
    if not config.is_push:
        raise errors.consumer_flow_acks_require_push()
    if not config.flow_control:
        raise errors.consumer_flow_acks_require_flow_control()
    if config.idle_heartbeat != FLOW_ACKS_HEARTBEAT:
        raise errors.stream_invalid_config("flow control ack policy heartbeat needs to be 1s")
    if config.max_ack_pending <= 0:
        raise errors.consumer_flow_acks_require_max_ack_pending()
    if config.ack_wait or config.backoff:
        raise errors.consumer_flow_acks_require_no_ack_wait()
    if config.max_deliver > 0:
        raise errors.consumer_flow_acks_require_no_max_deliver()


def _check_push(config: ApiConsumerConfig, stream: ApiStreamConfig) -> None:
    subject = config.deliver_subject
    if names.has_wildcards(subject):
        raise errors.consumer_deliver_to_wildcards()
    if not names.is_subject(subject):
        raise errors.consumer_deliver_invalid()
    if any(names.is_subset(subject, each) for each in stream.subjects):
        raise errors.consumer_deliver_cycle()
    if config.max_waiting:
        raise errors.consumer_push_max_waiting()
    if config.max_ack_pending > 0 and config.ack_policy is AckPolicy.NONE:
        raise errors.consumer_max_ack_pending_without_acks()
    if 0 < config.idle_heartbeat < _MIN_HEARTBEAT:
        raise errors.consumer_small_heartbeat()


def _check_pull(config: ApiConsumerConfig, stream: ApiStreamConfig) -> None:
    workqueue = stream.retention is RetentionPolicy.WORKQUEUE
    if workqueue and config.ack_policy is AckPolicy.NONE:
        raise errors.consumer_workqueue_pull_requires_ack()
    if config.rate_limit_bps:
        raise errors.consumer_pull_with_rate_limit()
    if config.idle_heartbeat:
        raise errors.consumer_heartbeat_requires_push()
    if config.flow_control:
        raise errors.consumer_flow_control_requires_push()
    if 0 < config.max_expires < MILLISECOND:
        raise errors.consumer_max_request_expires_small()


def _check_limits(
    config: ApiConsumerConfig, stream: ApiStreamConfig, limits: AccountLimits
) -> None:
    bounds = stream.consumer_limits
    for limit in (MAX_ACK_PENDING, limits.max_ack_pending, bounds.max_ack_pending):
        if 0 < limit < config.max_ack_pending:
            raise errors.consumer_max_ack_pending_exceeded(limit)
    if 0 < bounds.inactive_threshold < config.inactive_threshold:
        raise errors.consumer_inactive_threshold_exceeded(
            format_duration(bounds.inactive_threshold)
        )


def _check_filters(config: ApiConsumerConfig) -> None:
    if config.filter_subject and config.filter_subjects:
        raise errors.consumer_duplicate_filters()
    if "" in config.filter_subjects:
        raise errors.consumer_empty_filter()
    filters = config.filters
    too_many = subject_lists.excess(filters)
    if too_many:
        raise errors.stream_invalid_config(too_many)
    meeting = subject_lists.first_meeting(filters, names.is_subset)
    for subject in filters:
        if not names.is_subject(subject):
            raise errors.stream_invalid_config("invalid subject")
        if meeting is not None and subject == meeting[0]:
            raise errors.consumer_filters_overlap()


def _check_start(config: ApiConsumerConfig) -> None:
    policy, seq, time = config.deliver_policy, config.opt_start_seq, config.opt_start_time
    words = policy.value.replace("_", " ")
    wants_seq = policy is DeliverPolicy.BY_START_SEQUENCE
    wants_time = policy is DeliverPolicy.BY_START_TIME
    if wants_seq and not seq:
        raise _start(words, "start sequence", "not set")
    if wants_time and time is None:
        raise _start(words, "start time", "not set")
    if seq and not wants_seq:
        raise _start(words, "start start sequence" if wants_time else "start sequence")
    if time is not None and not wants_time:
        raise _start(words, "start time")
    if policy is DeliverPolicy.LAST_PER_SUBJECT and not config.filters:
        raise _start(words, "filter subject", "not set")


def _start(policy: str, what: str, state: str = "also set") -> errors.ApiError:
    return errors.consumer_invalid_policy(
        f"consumer delivery policy is deliver {policy}, but optional {what} is {state}"
    )


def _check_details(config: ApiConsumerConfig) -> None:
    if config.sample_freq and not _SAMPLING.fullmatch(config.sample_freq):
        raise errors.consumer_invalid_sampling(f'"{config.sample_freq[:40]}": invalid syntax')
    if config.flow_control and not config.idle_heartbeat:
        raise errors.consumer_flow_control_needs_heartbeats()
    if config.durable_name and config.name and config.durable_name != config.name:
        raise errors.consumer_names_differ()
    if sum(len(name) + len(text) for name, text in config.metadata.items()) > MAX_METADATA_LENGTH:
        raise errors.consumer_metadata_too_long(f"{MAX_METADATA_LENGTH // 1024}KB")


def _check_priority(config: ApiConsumerConfig) -> None:
    if config.priority_policy is PriorityPolicy.NONE:
        if config.priority_groups:
            raise errors.consumer_priority_group_without_policy()
        if config.priority_timeout:
            raise errors.consumer_pinned_ttl_without_policy()
        return
    if config.is_push:
        raise errors.consumer_push_with_priority_group()
    if not config.priority_groups:
        raise errors.consumer_priority_without_group()
    for group in config.priority_groups:
        if not group:
            raise errors.consumer_group_name_empty()
        if not is_group_name(group):
            raise errors.consumer_group_name_invalid()

"""The errors of JetStream's API, by their numbers.

Clients tell errors apart by `err_code`, by `code`, and some by the words of `description`, so all
three are those of nats-server (`errors.json` there is the list). Each error that the gateway
answers with has a function here that makes it. Those with an argument put it into the description.

`ApiError` is raised by whatever parses or checks, and is the only exception that parts of this
room raise for what a client sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final


class ApiError(Exception):
    """One error as JetStream's API tells it. `code` is like HTTP's, `err_code` is the kind."""

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(description)
        self.code: Final = code
        self.err_code: Final = err_code
        self.description: Final = description

    def to_json(self) -> dict[str, Any]:
        """Return the value of `error` in a reply. nats-py refuses any other key."""
        return {"code": self.code, "err_code": self.err_code, "description": self.description}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ApiError):
            return NotImplemented
        return self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash((self.code, self.err_code, self.description))

    def __str__(self) -> str:
        return f"{self.code}/{self.err_code} {self.description}"

    def __repr__(self) -> str:
        return f"ApiError({self.code}, {self.err_code}, {self.description!r})"

    def __reduce__(self) -> tuple[type[ApiError], tuple[int, int, str]]:
        return (ApiError, (self.code, self.err_code, self.description))


def _fixed(code: int, err_code: int, description: str) -> Callable[[], ApiError]:
    return lambda: ApiError(code, err_code, description)


def _with(code: int, err_code: int, template: str = "{}") -> Callable[[object], ApiError]:
    return lambda argument: ApiError(code, err_code, template.format(argument))


# Requests in general.
bad_request: Final = _fixed(400, 10003, "bad request")
invalid_json: Final = _with(400, 10025, "invalid JSON: {}")
not_empty_request: Final = _fixed(400, 10038, "expected an empty request payload")
required_api_level: Final = _fixed(412, 10185, "JetStream minimum api level required")
pedantic: Final = _with(400, 10157, "pedantic mode: {}")

# Whether there is a JetStream, and how much of it an account may use.
not_enabled: Final = _fixed(503, 10076, "JetStream not enabled")
not_enabled_for_account: Final = _fixed(503, 10039, "JetStream not enabled for account")
temporarily_unavailable: Final = _fixed(503, 10008, "JetStream system temporarily unavailable")
clustering_required: Final = _fixed(503, 10010, "JetStream clustering support required")
insufficient_resources: Final = _fixed(503, 10023, "insufficient resources")
account_resources_exceeded: Final = _fixed(400, 10002, "resource limits exceeded for account")
memory_resources_exceeded: Final = _fixed(500, 10028, "insufficient memory resources available")
storage_resources_exceeded: Final = _fixed(500, 10047, "insufficient storage resources available")
maximum_consumers: Final = _fixed(400, 10026, "maximum consumers limit reached")
maximum_streams: Final = _fixed(400, 10027, "maximum number of streams reached")
max_bytes_required: Final = _fixed(
    400, 10113, "account requires a stream config to have max bytes set"
)
max_stream_bytes_exceeded: Final = _fixed(
    400, 10122, "stream max bytes exceeds account limit max stream bytes"
)
no_peers: Final = _with(400, 10005)

# Streams.
stream_not_found: Final = _fixed(404, 10059, "stream not found")
stream_name_mismatch: Final = _fixed(400, 10056, "stream name in subject does not match request")
stream_name_in_use: Final = _fixed(
    400, 10058, "stream name already in use with a different configuration"
)
stream_subject_overlap: Final = _fixed(400, 10065, "subjects overlap with an existing stream")
stream_invalid_config: Final = _with(500, 10052)
stream_create_failed: Final = _with(500, 10049)
stream_update_failed: Final = _with(500, 10069)
stream_delete_failed: Final = _with(500, 10050)
stream_general_error: Final = _with(500, 10051)
stream_sealed: Final = _fixed(400, 10109, "invalid operation on sealed stream")
stream_replicas_not_supported: Final = _fixed(
    500, 10074, "replicas > 1 not supported in non-clustered mode"
)
replicas_negative: Final = _fixed(400, 10133, "replicas count cannot be negative")
stream_name_separators: Final = _fixed(400, 10128, "Stream name can not contain path separators")
stream_purge_failed: Final = _with(500, 10110)
stream_offline: Final = _fixed(500, 10118, "stream is offline")
stream_subjects_exceeded: Final = _fixed(500, 10117, "subject details would exceed maximum allowed")
stream_mirror_not_updatable: Final = _fixed(
    400, 10055, "stream mirror configuration can not be updated"
)
mirror_with_subjects: Final = _fixed(400, 10034, "stream mirrors can not contain subjects")
mirror_with_sources: Final = _fixed(400, 10031, "stream mirrors can not also contain other sources")
mirror_with_first_seq: Final = _fixed(
    400, 10143, "stream mirrors can not have first sequence configured"
)
mirror_with_counters: Final = _fixed(400, 10173, "stream mirrors can not also calculate counters")
mirror_with_schedules: Final = _fixed(400, 10186, "stream mirrors can not also schedule messages")
mirror_with_atomic_publish: Final = _fixed(
    400, 10198, "stream mirrors can not also use atomic publishing"
)
mirror_with_batch_publish: Final = _fixed(
    400, 10209, "stream mirrors can not also use batch publishing"
)
mirror_consumer_invalid: Final = _fixed(400, 10213, "stream mirror consumer config is invalid")
mirror_max_msg_size_too_big: Final = _fixed(
    400, 10030, "stream mirror must have max message size >= source"
)
mirror_invalid_name: Final = _fixed(400, 10142, "mirrored stream name is invalid")
mirror_multiple_filters: Final = _fixed(
    400, 10150, "mirror with multiple subject transforms cannot also have a single subject filter"
)
mirror_invalid_filter: Final = _with(400, 10151, "mirror transform source: {}")
mirror_overlapping_filters: Final = _fixed(400, 10152, "mirror subject filters can not overlap")
mirror_invalid_transform: Final = _with(400, 10154, "mirror transform: {}")
mirror_setup_failed: Final = _with(500, 10029)
source_max_msg_size_too_big: Final = _fixed(
    400, 10046, "stream source must have max message size >= target"
)
source_duplicate: Final = _fixed(400, 10140, "duplicate source configuration detected")
source_invalid_name: Final = _fixed(400, 10141, "sourced stream name is invalid")
source_multiple_filters: Final = _fixed(
    400, 10144, "source with multiple subject transforms cannot also have a single subject filter"
)
source_invalid_filter: Final = _with(400, 10145, "source transform source: {}")
source_invalid_transform: Final = _with(400, 10146, "source transform: {}")
source_overlapping_filters: Final = _fixed(400, 10147, "source filters can not overlap")
source_with_schedules: Final = _fixed(400, 10187, "stream source can not also schedule messages")
source_consumer_invalid: Final = _fixed(400, 10215, "stream source consumer config is invalid")
source_consumer_duplicate: Final = _fixed(400, 10216, "duplicate stream source consumer detected")
source_setup_failed: Final = _with(500, 10045)
transform_invalid_source: Final = _with(400, 10155, "stream transform source: {}")
transform_invalid_destination: Final = _with(400, 10156, "stream transform: {}")
snapshot_failed: Final = _with(500, 10064, "snapshot failed: {}")
restore_failed: Final = _with(500, 10062, "restore failed: {}")

# Messages of a stream.
no_message_found: Final = _fixed(404, 10037, "no message found")
sequence_not_found: Final = _with(400, 10043, "sequence {} not found")
message_delete_failed: Final = _with(500, 10057)

# Publishing.
stream_store_failed: Final = _with(503, 10077)
stream_not_match: Final = _fixed(400, 10060, "expected stream does not match")
message_too_large: Final = _fixed(400, 10054, "message size exceeds maximum allowed")
header_too_large: Final = _fixed(400, 10097, "header size exceeds maximum allowed of 64k")
wrong_last_msg_id: Final = _with(400, 10070, "wrong last msg ID: {}")
wrong_last_sequence: Final = _with(400, 10071, "wrong last sequence: {}")
wrong_last_sequence_constant: Final = _fixed(400, 10164, "wrong last sequence")
expected_sequence_missing: Final = _fixed(
    400, 10193, "missing sequence for expected last sequence per subject"
)
duplicate_in_process: Final = _fixed(409, 10158, "duplicate message id is in process")
rollup_failed: Final = _with(500, 10111)
message_ttl_invalid: Final = _fixed(400, 10165, "invalid per-message TTL")
message_ttl_disabled: Final = _fixed(400, 10166, "per-message TTL is disabled")
too_many_requests: Final = _fixed(429, 10167, "too many requests")
source_header_not_allowed: Final = _fixed(400, 10227, "message stream source header is not allowed")

# Counters.
counter_disabled: Final = _fixed(400, 10168, "message counters is disabled")
counter_increment_missing: Final = _fixed(400, 10169, "message counter increment is missing")
counter_has_payload: Final = _fixed(400, 10170, "message counter has payload")
counter_increment_invalid: Final = _fixed(400, 10171, "message counter increment is invalid")
counter_broken: Final = _fixed(400, 10172, "message counter is broken")

# Schedules.
schedules_disabled: Final = _fixed(400, 10188, "message schedules is disabled")
schedule_pattern_invalid: Final = _fixed(400, 10189, "message schedules pattern is invalid")
schedule_target_invalid: Final = _fixed(400, 10190, "message schedules target is invalid")
schedule_ttl_invalid: Final = _fixed(400, 10191, "message schedules invalid per-message TTL")
schedule_rollup_invalid: Final = _fixed(400, 10192, "message schedules invalid rollup")
schedule_source_invalid: Final = _fixed(400, 10203, "message schedules source is invalid")
schedule_scheduler_invalid: Final = _fixed(400, 10212, "message schedules invalid scheduler")
schedule_time_zone_invalid: Final = _fixed(400, 10223, "message schedules time zone is invalid")

# Batches.
batch_disabled: Final = _fixed(400, 10174, "atomic publish is disabled")
batch_sequence_missing: Final = _fixed(400, 10175, "atomic publish sequence is missing")
batch_incomplete: Final = _fixed(400, 10176, "atomic publish batch is incomplete")
batch_header_unsupported: Final = _with(400, 10177, "atomic publish unsupported header used: {}")
batch_id_invalid: Final = _fixed(400, 10179, "atomic publish batch ID is invalid")
batch_too_large: Final = _with(400, 10199, "atomic publish batch is too large: {}")
batch_commit_invalid: Final = _fixed(400, 10200, "atomic publish batch commit is invalid")
batch_duplicate_message: Final = _fixed(
    400, 10201, "atomic publish batch contains duplicate message id"
)
batch_too_many_in_flight: Final = _fixed(429, 10210, "atomic publish too many inflight")
fast_batch_disabled: Final = _fixed(400, 10205, "batch publish is disabled")
fast_batch_pattern_invalid: Final = _fixed(400, 10206, "batch publish pattern is invalid")
fast_batch_id_invalid: Final = _fixed(400, 10207, "batch publish ID is invalid")
fast_batch_unknown: Final = _fixed(400, 10208, "batch publish ID unknown")
fast_batch_too_many_in_flight: Final = _fixed(429, 10211, "batch publish too many inflight")

# Consumers.
consumer_not_found: Final = _fixed(404, 10014, "consumer not found")
consumer_create_failed: Final = _with(500, 10012)
consumer_name_in_use: Final = _fixed(400, 10013, "consumer name already in use")
consumer_already_exists: Final = _fixed(400, 10148, "consumer already exists")
consumer_does_not_exist: Final = _fixed(400, 10149, "consumer does not exist")
consumer_still_active: Final = _fixed(400, 10105, "consumer already exists and is still active")
consumer_replacement_differs: Final = _fixed(
    400, 10106, "consumer replacement durable config not the same"
)
consumer_config_required: Final = _fixed(400, 10078, "consumer config required")
consumer_durable_not_in_subject: Final = _fixed(
    400, 10016, "consumer expected to be durable but no durable name set in subject"
)
consumer_durable_mismatch: Final = _fixed(
    400, 10017, "consumer name in subject does not match durable name in request"
)
consumer_durable_not_set: Final = _fixed(
    400, 10018, "consumer expected to be durable but a durable name was not set"
)
consumer_ephemeral_with_durable_in_subject: Final = _fixed(
    400, 10019, "consumer expected to be ephemeral but detected a durable name set in subject"
)
consumer_ephemeral_with_durable: Final = _fixed(
    400, 10020, "consumer expected to be ephemeral but a durable name was set in request"
)
consumer_names_differ: Final = _fixed(
    400, 10132, "Consumer Durable and Name have to be equal if both are provided"
)
consumer_name_separators: Final = _fixed(
    400, 10127, "Consumer name can not contain path separators"
)
consumer_name_too_long: Final = _with(
    400, 10102, "consumer name is too long, maximum allowed is {}"
)
consumer_name_invalid: Final = _fixed(400, 10103, "durable name can not contain '.', '*', '>'")
consumer_description_too_long: Final = _with(
    400, 10107, "consumer description is too long, maximum allowed is {}"
)
consumer_metadata_too_long: Final = _with(
    400, 10135, "consumer metadata exceeds maximum size of {}"
)
consumer_invalid_policy: Final = _with(400, 10094)
consumer_ack_policy_invalid: Final = _fixed(400, 10181, "consumer ack policy invalid")
consumer_replay_policy_invalid: Final = _fixed(400, 10182, "consumer replay policy invalid")
consumer_ack_wait_negative: Final = _fixed(400, 10183, "consumer ack wait needs to be positive")
consumer_backoff_negative: Final = _fixed(400, 10184, "consumer backoff needs to be positive")
consumer_max_deliver_backoff: Final = _fixed(
    400, 10116, "max deliver is required to be > length of backoff values"
)
consumer_invalid_sampling: Final = _with(
    400, 10095, "failed to parse consumer sampling configuration: {}"
)
consumer_filter_mismatch: Final = _fixed(
    400, 10131, "Consumer create request did not match filtered subject from create subject"
)
consumer_duplicate_filters: Final = _fixed(
    400, 10136, "consumer cannot have both FilterSubject and FilterSubjects specified"
)
consumer_several_filters_in_subject: Final = _fixed(
    400, 10137, "consumer with multiple subject filters cannot use subject based API"
)
consumer_filters_overlap: Final = _fixed(400, 10138, "consumer subject filters cannot overlap")
consumer_empty_filter: Final = _fixed(
    400, 10139, "consumer filter in FilterSubjects cannot be empty"
)
consumer_filter_not_subset: Final = _fixed(
    400, 10093, "consumer filter subject is not a valid subset of the interest subjects"
)
consumer_max_ack_pending_without_acks: Final = _fixed(
    400, 10082, "consumer requires ack policy for max ack pending"
)
consumer_max_ack_pending_exceeded: Final = _with(
    400, 10121, "consumer max ack pending exceeds system limit of {}"
)
consumer_inactive_threshold_exceeded: Final = _with(
    400, 10153, "consumer inactive threshold exceeds system limit of {}"
)
consumer_replicas_exceed_stream: Final = _fixed(
    400, 10126, "consumer config replica count exceeds parent stream"
)
consumer_replicas_differ: Final = _fixed(
    400, 10134, "consumer config replicas must match interest retention stream's replicas"
)

# Consumers that are pulled from.
consumer_pull_with_rate_limit: Final = _fixed(
    400, 10086, "consumer in pull mode can not have rate limit set"
)
consumer_max_waiting_negative: Final = _fixed(
    400, 10087, "consumer max waiting needs to be positive"
)
consumer_heartbeat_requires_push: Final = _fixed(
    400, 10088, "consumer idle heartbeat requires a push based consumer"
)
consumer_flow_acks_require_push: Final = _fixed(
    400, 10218, "flow control ack policy requires a push based consumer"
)
consumer_flow_acks_require_flow_control: Final = _fixed(
    400, 10219, "flow control ack policy requires flow control"
)
consumer_flow_acks_require_max_ack_pending: Final = _fixed(
    400, 10220, "flow control ack policy requires max ack pending"
)
consumer_flow_acks_require_no_ack_wait: Final = _fixed(
    400, 10221, "flow control ack policy requires unset ack wait"
)
consumer_flow_acks_require_no_max_deliver: Final = _fixed(
    400, 10222, "flow control ack policy requires unset max deliver"
)
consumer_flow_control_requires_push: Final = _fixed(
    400, 10089, "consumer flow control requires a push based consumer"
)
consumer_max_request_batch_negative: Final = _fixed(
    400, 10114, "consumer max request batch needs to be > 0"
)
consumer_max_request_expires_small: Final = _fixed(
    400, 10115, "consumer max request expires needs to be >= 1ms"
)
consumer_max_request_batch_exceeded: Final = _with(
    400, 10125, "consumer max request batch exceeds server limit of {}"
)

# Consumers that push.
consumer_deliver_to_wildcards: Final = _fixed(400, 10079, "consumer deliver subject has wildcards")
consumer_push_max_waiting: Final = _fixed(
    400, 10080, "consumer in push mode can not set max waiting"
)
consumer_deliver_cycle: Final = _fixed(400, 10081, "consumer deliver subject forms a cycle")
consumer_deliver_invalid: Final = _fixed(400, 10112, "invalid push consumer deliver subject")
consumer_small_heartbeat: Final = _fixed(400, 10083, "consumer idle heartbeat needs to be >= 100ms")
consumer_flow_control_needs_heartbeats: Final = _fixed(
    400, 10108, "consumer with flow control also needs heartbeats"
)

# Consumers of work queues.
consumer_workqueue_pull_requires_ack: Final = _fixed(
    400, 10084, "consumer in pull mode requires explicit ack policy on workqueue stream"
)
consumer_workqueue_requires_ack: Final = _fixed(
    400, 10098, "workqueue stream requires explicit ack"
)
consumer_workqueue_several_unfiltered: Final = _fixed(
    400, 10099, "multiple non-filtered consumers not allowed on workqueue stream"
)
consumer_workqueue_not_unique: Final = _fixed(
    400, 10100, "filtered consumer not unique on workqueue stream"
)
consumer_workqueue_not_deliver_all: Final = _fixed(
    400, 10101, "consumer must be deliver all on workqueue stream"
)

# Priority groups, reset.
consumer_priority_without_group: Final = _fixed(
    400, 10159, "Setting PriorityPolicy requires at least one PriorityGroup to be set"
)
consumer_priority_group_unknown: Final = _fixed(
    400, 10160, "Provided priority group does not exist for this consumer"
)
consumer_group_name_empty: Final = _fixed(400, 10161, "Group name cannot be an empty string")
consumer_group_name_invalid: Final = _fixed(
    400,
    10162,
    "Valid priority group name must match A-Z, a-z, 0-9, -_/=)+ and may not exceed 16 characters",
)
consumer_push_with_priority_group: Final = _fixed(
    400, 10178, "priority groups can not be used with push consumers"
)
consumer_priority_group_without_policy: Final = _fixed(
    400, 10196, "consumer can not have priority groups when policy is none"
)
consumer_pinned_ttl_without_policy: Final = _fixed(
    400, 10197, "PinnedTTL cannot be set when PriorityPolicy is none"
)
consumer_invalid_reset: Final = _with(400, 10204, "invalid reset: {}")

"""All metrics: what each part of a cluster counts.

docs/operations.md lists them, and a test compares. A new metric is added here, counted by its part
(`counting.py`), and described there; then it is in `/metrics`, and in what the coordinator answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from holdfast.protocol.monitoring.description import (
    COUNTS,
    LONG_SECONDS,
    SECONDS,
    Description,
    MetricKind,
    PartKind,
)

#: By name, without the namespace.
METRICS: Final[dict[str, Description]] = {}

_COORDINATORS: Final = (PartKind.COORDINATOR, PartKind.STANDBY)
_WITH_BUCKET: Final = (*_COORDINATORS, PartKind.PERSIST)
_BUSY: Final = (PartKind.PERSIST, PartKind.GATEWAY_HTTP, PartKind.GATEWAY_JETSTREAM)


def _described(
    kind: MetricKind,
    parts: Iterable[PartKind],
    name: str,
    help_text: str,
    labels: tuple[str, ...] = (),
    buckets: tuple[float, ...] = (),
) -> Description:
    found = Description(name, kind, help_text, frozenset(parts), labels, buckets)
    assert name not in METRICS, name
    METRICS[name] = found
    return found


def _counter(
    parts: Iterable[PartKind], name: str, help_text: str, *labels: str
) -> Description:
    assert name.endswith("_total"), name
    return _described(MetricKind.COUNTER, parts, name, help_text, labels)


def _gauge(parts: Iterable[PartKind], name: str, help_text: str, *labels: str) -> Description:
    assert not name.endswith("_total"), name
    return _described(MetricKind.GAUGE, parts, name, help_text, labels)


def _histogram(
    parts: Iterable[PartKind],
    name: str,
    help_text: str,
    buckets: tuple[float, ...],
    *labels: str,
) -> Description:
    return _described(MetricKind.HISTOGRAM, parts, name, help_text, labels, buckets)


# Every part
BUILD_INFO = _gauge(
    PartKind, "build_info", "1, with the version, the kind of the part and its name.",
    "version", "part", "name",
)
START_TIME = _gauge(PartKind, "start_time_seconds", "When the process started, since the epoch.")
PROCESS_CPU = _counter(PartKind, "process_cpu_seconds_total", "Processor time of the process.")
PROCESS_MEMORY = _gauge(PartKind, "process_resident_bytes", "Memory of the process.")
ERRORS = _counter(
    (*_COORDINATORS, *_BUSY), "errors_total", "Refusals that callers saw, by error code.", "code"
)

# The bucket
BUCKET_REQUESTS = _counter(
    _WITH_BUCKET, "bucket_requests_total",
    "Requests to the bucket by kind (put, get, head, list, delete), failed ones included.", "kind",
)
BUCKET_DOLLARS = _counter(
    _WITH_BUCKET, "bucket_dollars_total",
    "What these requests cost at the prices of `--prices`, by kind.", "kind",
)
BUCKET_FAILURES = _counter(_WITH_BUCKET, "bucket_failures_total", "Failed requests to the bucket.")
BUCKET_SENT = _counter(_WITH_BUCKET, "bucket_sent_bytes_total", "Bytes put into the bucket.")
BUCKET_RECEIVED = _counter(_WITH_BUCKET, "bucket_received_bytes_total", "Bytes read from it.")

# Persist servers: writes
_PERSIST: Final = (PartKind.PERSIST,)
OPERATIONS = _counter(_PERSIST, "persist_operations_total", "Operations of writes executed.")
TICKS = _counter(_PERSIST, "persist_ticks_total", "Ticks that wrote to the log.")
APPEND_STAGES = _histogram(
    _PERSIST, "persist_append_duration_seconds",
    "Time of a group of writes in each stage: queue (until its tick is built), sync (until the "
    "log is synced), gate (until the fence is read), release (until its answer is sent).",
    SECONDS, "stage",
)
TAIL_READS = _counter(
    _PERSIST, "persist_tail_reads_total",
    "Groups of reads answered from messages that wait in memory for their file.",
)
PREFETCH_HITS = _counter(
    _PERSIST, "persist_prefetch_hits_total",
    "Groups of reads of large streams that found their part of the file in memory, while that had "
    "to be found out.",
)
PREFETCH_MISSES = _counter(
    _PERSIST, "persist_prefetch_misses_total",
    "The same that waited until a thread had read it from the disk.",
)
PREFETCHED = _counter(
    _PERSIST, "persist_prefetched_bytes_total", "Bytes that these threads read from the disk."
)
PREFETCH_GIVEN_BACK = _counter(
    _PERSIST, "persist_prefetch_given_back_bytes_total",
    "Bytes of those that left memory again once their readers had passed.",
)
PREFETCH_LOST = _counter(
    _PERSIST, "persist_prefetch_lost_total",
    "Reads whose part of the file was prefetched and had left memory before; windows shrink.",
)
PREFETCH_HELD = _gauge(
    _PERSIST, "persist_prefetch_held_bytes", "What is prefetched, or being so, and not given back."
)
PREFETCH_WINDOWS = _gauge(
    _PERSIST, "persist_prefetch_window_bytes", "How far it reads ahead of all its readers."
)
READ_DISK_WAITS = _counter(
    _PERSIST, "persist_read_disk_waits_total",
    "Groups of reads of large stores for which the event loop read from the disk.",
)
SYNCS = _histogram(_PERSIST, "persist_sync_duration_seconds", "Time of each sync of the log.",
                   SECONDS)
TICK_GROUPS = _histogram(_PERSIST, "persist_tick_groups", "Answered groups of each release.",
                         COUNTS)
LOG_WRITTEN = _counter(_PERSIST, "persist_log_written_bytes_total", "Bytes appended to the log.")
LOG_SIZE = _gauge(_PERSIST, "persist_log_bytes", "Size of the log.")
LOG_PENDING = _gauge(_PERSIST, "persist_log_pending_bytes", "Bytes of it that wait for a sync.")
REQUEST_BYTES = _counter(
    _PERSIST, "persist_request_bytes_total",
    "Bytes of clients' requests by where the client is: in the `same` zone, in `another`, or "
    "`untold`; only with `--zone`.", "zone",
)
REPLY_BYTES = _counter(
    _PERSIST, "persist_reply_bytes_total",
    "Bytes of the answers to these clients, by the same.", "zone",
)
WAITING = _gauge(_PERSIST, "persist_waiting_bytes", "Bytes of requests that are not answered yet.")
BUSY = _counter(_PERSIST, "persist_busy_total", "Answers `busy` and `rate_limited`, by cause.",
                "cause")

# Persist servers: stores
OPEN_STORES = _gauge(_PERSIST, "persist_open_stores", "Open stores.")
OPENED = _counter(_PERSIST, "persist_opened_stores_total", "Stores opened.")
TAKEOVERS = _counter(
    _PERSIST, "persist_takeovers_total", "Stores opened with changes from logs of dead servers."
)
TAKEOVER_PAUSES = _histogram(
    _PERSIST, "persist_takeover_duration_seconds",
    "Time from the grant of a store whose last owner died to its first answer.", LONG_SECONDS,
)
OPENINGS = _histogram(
    _PERSIST, "persist_open_duration_seconds", "Time from the grant of a store until it serves.",
    SECONDS,
)
FENCED = _counter(_PERSIST, "persist_fenced_total", "Lives of this process that ended fenced.")
CONSUMERS = _gauge(_PERSIST, "persist_consumers", "Consumers of open streams.")
CONSUMERS_LAG = _gauge(
    _PERSIST, "persist_consumers_lag", "Messages that consumers have not acknowledged, in all."
)
CONSUMERS_LAG_MAX = _gauge(
    _PERSIST, "persist_consumers_lag_max", "The same of the consumer that is furthest behind."
)

# Persist servers: tiers
SNAPSHOT_BACKLOG = _gauge(_PERSIST, "persist_snapshot_backlog", "Stores that wait for a snapshot.")
SNAPSHOT_LAG = _gauge(
    _PERSIST, "persist_snapshot_lag_seconds", "How long the first of them has waited."
)
BEHIND = _gauge(
    _PERSIST, "persist_behind_stores", "Stores with changes that the bucket lacks, so exports too."
)
OLDEST_UNEXPORTED = _gauge(
    _PERSIST, "persist_oldest_unexported_seconds", "Age of the oldest of these changes, at most."
)
LAG_BOUND = _gauge(
    _PERSIST, "persist_lag_bound_seconds",
    "How old they may become: `--max-lag`, stretched by a budget or by many large stores.",
)
SNAPSHOTS = _counter(_PERSIST, "persist_snapshots_total", "Snapshots published.")
COOLED = _counter(_PERSIST, "persist_cooled_stores_total", "Stores whose files left the disk.")
ARCHIVED = _counter(
    _PERSIST, "persist_archived_messages_total", "Messages moved from store files to the archive."
)
ARCHIVE_READS = _counter(
    _PERSIST, "persist_archive_reads_total",
    "Archived messages read back for its stores: `own`, by itself, as it has the role `archive`; "
    "`server`, by a server with that role; `fallback`, by itself, as no such server helped.",
    "source",
)
ARCHIVE_AHEAD_READS = _counter(
    _PERSIST, "persist_archive_ahead_reads_total",
    "Groups of reads that paged on through archived messages: `found` those fetched before, or "
    "`waited` for the archive; windows grow.", "outcome",
)
ARCHIVE_AHEAD_HELD = _gauge(
    _PERSIST, "persist_archive_ahead_held_bytes",
    "What is fetched so, or on its way, and not passed yet.",
)
ARCHIVE_WRONG = _counter(
    _PERSIST, "persist_archive_wrong_answers_total",
    "Answers of servers with the role `archive` that had something else than what was archived.",
)
ARCHIVE_SERVED = _counter(
    _PERSIST, "persist_archive_served_messages_total",
    "Archived messages that it read for other servers.",
)
ARCHIVE_ASKED = _counter(
    _PERSIST, "persist_archive_requests_total",
    "What other servers asked it to read of the archive: `answered`, `refused`.", "outcome",
)
CLAIMS = _gauge(_PERSIST, "persist_claims", "Pieces of cold work that this server has claimed.")
COLLECTED = _counter(
    _PERSIST, "persist_collected_objects_total", "Objects that its collector removed."
)
COLD_READS = _counter(
    _PERSIST, "persist_cold_reads_total",
    "Snapshots read by their source: `cache`, a server of the zone with that role; `bucket`; "
    "`wrong`, read from the bucket after wrong bytes from a cache.", "source",
)
CACHE_BYTES = _gauge(_PERSIST, "persist_cache_bytes", "Blocks of snapshots in its memory.")
CACHE_ASKED = _counter(
    _PERSIST, "persist_cache_requests_total",
    "Blocks that servers of its zone asked for: `hit`, `miss` (fetched from the bucket), `joined` "
    "(another one is fetching it), `refused`.", "outcome",
)
FLUSH_INTERVAL = _gauge(
    _PERSIST, "persist_flush_interval_seconds",
    "Least time between two puts of the log into the bucket; a budget stretches it.",
)
BUDGET = _gauge(_PERSIST, "persist_budget_dollars", "What `--budget-per-day` allows.")
BUDGET_LEFT = _gauge(
    _PERSIST, "persist_budget_left_ratio",
    "What is left of the budget's savings for bursts: 1 all, 0 the budget is exceeded.",
)

# Coordinators
SERVERS = _gauge(_COORDINATORS, "coordinator_servers", "Persist servers by state.", "state")
ROLES = _gauge(_COORDINATORS, "coordinator_role_servers", "Live persist servers by role.", "role")
TERM = _gauge(_COORDINATORS, "coordinator_term", "The term of the active one.")
REQUESTS = _counter(_COORDINATORS, "coordinator_requests_total", "Requests answered.")
BATCHES = _histogram(
    _COORDINATORS, "coordinator_batch_duration_seconds",
    "Time of each transaction of the state file, with its sync.", SECONDS,
)
GRANTS = _counter(_COORDINATORS, "coordinator_grants_total", "Stores granted to servers.")
MOVES = _counter(
    _COORDINATORS, "coordinator_moved_stores_total",
    "Stores that their owners handed over to the servers named by the coordinator.",
)
FENCES = _counter(_COORDINATORS, "coordinator_fences_total", "Incarnations fenced.")
SERVERS_ENDED = _counter(
    _COORDINATORS, "coordinator_servers_ended_total",
    "Incarnations that ended: released (cleanly) or fenced.", "how",
)
QUEUED = _gauge(_COORDINATORS, "coordinator_waiting_requests", "Requests that wait for an answer.")

# HTTP gateways
_HTTP: Final = (PartKind.GATEWAY_HTTP,)
HTTP_REQUESTS = _histogram(
    _HTTP, "gateway_request_duration_seconds",
    "Time until a request was answered; streaming ones until their first byte.", SECONDS, "class",
)
HTTP_CONNECTIONS = _gauge(_HTTP, "gateway_connections", "Open connections.")
HTTP_SESSIONS = _gauge(_HTTP, "gateway_sessions", "Clients of the cluster, one for each token.")
FOLLOWERS = _gauge(_HTTP, "gateway_followers", "Followers by way: sse, websocket or long_poll.",
                   "way")

# JetStream gateways
_JETSTREAM: Final = (PartKind.GATEWAY_JETSTREAM,)
SERVED_STREAMS = _gauge(_JETSTREAM, "jetstream_streams", "Streams that this gateway serves.")
SERVED_CONSUMERS = _gauge(_JETSTREAM, "jetstream_consumers", "Consumers of these streams.")
SERVED_CONSUMERS_LAG = _gauge(
    _JETSTREAM, "jetstream_consumers_lag", "Messages that they have not acknowledged, in all."
)
SERVED_CONSUMERS_LAG_MAX = _gauge(
    _JETSTREAM, "jetstream_consumers_lag_max",
    "The same of the consumer that is furthest behind.",
)
API_REQUESTS = _counter(_JETSTREAM, "jetstream_api_requests_total", "Requests of the API.")
API_ERRORS = _counter(
    _JETSTREAM, "jetstream_api_errors_total", "Requests of the API answered with an error."
)
PUBLISHED = _counter(_JETSTREAM, "jetstream_published_total", "Messages taken for streams.")
PUBLISHED_BYTES = _counter(
    _JETSTREAM, "jetstream_published_bytes_total", "Bytes of their values and headers."
)
UNANSWERED = _gauge(_JETSTREAM, "jetstream_unanswered_publishes", "Publishes not answered yet.")

# The auth service
_AUTH: Final = (PartKind.AUTH,)
LOGINS = _counter(_AUTH, "auth_logins_total", "Logins by outcome: accepted or refused.", "outcome")

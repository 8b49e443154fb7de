"""The configuration of a stream of JetStream: what clients send, and what they get back.

The fields have JetStream's names and units: durations are nanoseconds, -1 is no limit. `parse`
reads them from JSON, `stream_checks` refuses what is not allowed and fills in what was left out,
and `to_json` gives the config of a reply, in nats-server's order and without what it leaves out.
`store_settings` says what the store of the stream is told of it; the rest is the gateway's.

Keys of metadata that begin with `_nats.` are nats-server's own. Clients send those of a reply back
with an update; they are dropped here, and none are added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final, Self

from holdfast.gateway.jetstream.api import bodies, stream_source
from holdfast.gateway.jetstream.api.stream_source import StreamSource
from holdfast.gateway.jetstream.api.subject_transform import SubjectTransform
from holdfast.gateway.jetstream.api.times import SECOND
from holdfast.protocol.limits import MAX_DEDUPE_WINDOW_SECONDS, MAX_RETENTION_SECONDS

_OF_THE_SERVER: Final = "_nats."


class RetentionPolicy(StrEnum):
    """When messages go."""

    LIMITS = "limits"
    INTEREST = "interest"
    WORKQUEUE = "workqueue"


class DiscardPolicy(StrEnum):
    """What goes at a limit: the oldest message, or the new one is refused."""

    OLD = "old"
    NEW = "new"


class StorageType(StrEnum):
    """Where messages are. `memory` is kept like `file` here, with durability `applied`."""

    FILE = "file"
    MEMORY = "memory"


class StoreCompression(StrEnum):
    """Accepted and told again; stores compress by their own rules."""

    NONE = "none"
    S2 = "s2"


class PersistMode(StrEnum):
    """When a message is acknowledged: once it is on disk, or before."""

    DEFAULT = "default"
    ASYNC = "async"


@dataclass(frozen=True, slots=True)
class Republish:
    """What is published again once it is stored, and where to."""

    src: str = ""
    dest: str = ""
    headers_only: bool = False


@dataclass(frozen=True, slots=True)
class SubjectMapping:
    """The subject transform of a stream, as it is configured."""

    src: str = ""
    dest: str = ""


@dataclass(frozen=True, slots=True)
class ConsumerLimits:
    """Defaults and bounds of the consumers of a stream; 0 is none."""

    inactive_threshold: int = 0
    max_ack_pending: int = 0


@dataclass(frozen=True, slots=True)
class StreamPlacement:
    """Where nats-server would place a stream in its cluster."""

    cluster: str = ""
    tags: tuple[str, ...] = ()
    preferred: str = ""


@dataclass(frozen=True, slots=True)
class ApiStreamConfig:
    """One configuration. As parsed it may have anything; `stream_checks` makes it valid."""

    name: str = ""
    description: str = ""
    subjects: tuple[str, ...] = ()
    retention: RetentionPolicy = RetentionPolicy.LIMITS
    max_consumers: int = 0
    max_msgs: int = 0
    max_bytes: int = 0
    max_age: int = 0
    max_msgs_per_subject: int = 0
    max_msg_size: int = 0
    discard: DiscardPolicy = DiscardPolicy.OLD
    storage: StorageType = StorageType.FILE
    num_replicas: int = 0
    no_ack: bool = False
    duplicate_window: int = 0
    placement: StreamPlacement | None = None
    #: The stream of which this one has the messages, at their seqs.
    mirror: StreamSource | None = None
    #: The streams of which this one gets the messages, besides its own.
    sources: tuple[StreamSource, ...] = ()
    compression: StoreCompression = StoreCompression.NONE
    first_seq: int = 0
    subject_transform: SubjectMapping | None = None
    republish: Republish | None = None
    allow_direct: bool = False
    mirror_direct: bool = False
    discard_new_per_subject: bool = False
    sealed: bool = False
    deny_delete: bool = False
    deny_purge: bool = False
    allow_rollup_hdrs: bool = False
    consumer_limits: ConsumerLimits = field(default_factory=ConsumerLimits)
    allow_msg_ttl: bool = False
    subject_delete_marker_ttl: int = 0
    allow_msg_counter: bool = False
    allow_atomic: bool = False
    allow_msg_schedules: bool = False
    persist_mode: PersistMode = PersistMode.DEFAULT
    allow_batched: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, value: Any) -> Self:
        """Return the configuration that an object of JSON is. Raises ApiError 10025."""
        return cls._made(bodies.read(_SCHEMA, value))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the configuration that `to_json` gave; fields of later versions are skipped."""
        return cls._made(bodies.read(_SCHEMA, dict(value), strict=False))

    @classmethod
    def _made(cls, values: dict[str, Any]) -> Self:
        values.pop("template_owner", None)
        if "metadata" in values:
            values["metadata"] = {
                name: text
                for name, text in values["metadata"].items()
                if not name.startswith(_OF_THE_SERVER)
            }
        return cls(**values)

    @property
    def origins(self) -> tuple[StreamSource, ...]:
        """The streams from which this one copies."""
        return self.sources if self.mirror is None else (self.mirror,)

    def input_transform(self) -> SubjectTransform | None:
        """Return what the subjects of messages become before anything else, if they change."""
        mapping = self.subject_transform
        if mapping is None or not mapping.dest:
            return None
        return SubjectTransform(mapping.src, mapping.dest)

    def to_json(self) -> dict[str, Any]:
        """Return the config of a reply."""
        made = {}
        for name in _NAMES:
            value = getattr(self, name)
            if name in _ALWAYS or (value and value is not PersistMode.DEFAULT):
                made[name] = _plain(value)
        return made


def store_settings(
    config: ApiStreamConfig, *, durability: str | None = None, creating: bool = False
) -> dict[str, Any]:
    """Return the settings of the store of a checked configuration; None is a store's default.

    `durability` is that of streams whose configuration does not ask for less. All settings that
    depend on a configuration are there, so that an update also takes back what was set; only
    `first_seq` is there with `creating` alone, since a store takes it before its first message.
    The limit of one message is the gateway's: JetStream counts other bytes there than stores do.
    """
    relaxed = config.storage is StorageType.MEMORY or config.persist_mode is PersistMode.ASYNC
    window_seconds = config.duplicate_window / SECOND
    first = {"first_seq": config.first_seq} if creating and config.first_seq > 1 else {}
    return first | {
        "max_messages": _limit(config.max_msgs),
        "max_bytes": _limit(config.max_bytes),
        "max_age_seconds": _seconds(config.max_age),
        "discard": config.discard.value,
        "durability": "applied" if relaxed else durability,
        "dedupe_window_seconds": min(window_seconds, MAX_DEDUPE_WINDOW_SECONDS),
        "max_messages_per_subject": _limit(config.max_msgs_per_subject),
        "discard_new_per_subject": config.discard_new_per_subject,
        "subject_marker_seconds": _seconds(config.subject_delete_marker_ttl),
        # A mirror removes what fills the gaps of its origin. Its clients are refused all the same.
        "deny_delete": config.deny_delete and config.mirror is None,
        "deny_purge": config.deny_purge,
        "sealed": config.sealed,
    }


def _limit(value: int) -> int | None:
    return value if value > 0 else None


def _seconds(duration_ns: int) -> float | None:
    return min(duration_ns / SECOND, MAX_RETENTION_SECONDS) if duration_ns > 0 else None


def _plain(value: Any) -> Any:
    if isinstance(value, StreamSource):
        return value.to_json()
    if isinstance(value, StreamPlacement | Republish | SubjectMapping | ConsumerLimits):
        always = _ALWAYS_INSIDE.get(type(value), frozenset())
        pairs = ((each.name, getattr(value, each.name)) for each in fields(value))
        return {name: _plain(each) for name, each in pairs if each or name in always}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return dict(value)
    return value.value if isinstance(value, StrEnum) else value


_TRANSFORM: Final[bodies.Schema] = {"src": bodies.text, "dest": bodies.text}
_PLACEMENT: Final[bodies.Schema] = {
    "cluster": bodies.text,
    "tags": bodies.texts,
    "preferred": bodies.text,
}
_SCHEMA: Final[bodies.Schema] = {
    "name": bodies.text,
    "description": bodies.text,
    "subjects": bodies.texts,
    "retention": bodies.word(RetentionPolicy),
    "max_consumers": bodies.int64,
    "max_msgs": bodies.int64,
    "max_bytes": bodies.int64,
    "max_age": bodies.int64,
    "max_msgs_per_subject": bodies.int64,
    "max_msg_size": bodies.int32,
    "discard": bodies.word(DiscardPolicy, ignore_case=True),
    "storage": bodies.word(StorageType),
    "num_replicas": bodies.int64,
    "no_ack": bodies.boolean,
    "duplicate_window": bodies.int64,
    "placement": bodies.nested(_PLACEMENT, StreamPlacement),
    "mirror": stream_source.source,
    "sources": stream_source.sources,
    "compression": bodies.word(StoreCompression),
    "first_seq": bodies.uint64,
    "subject_transform": bodies.nested(_TRANSFORM, SubjectMapping),
    "republish": bodies.nested({**_TRANSFORM, "headers_only": bodies.boolean}, Republish),
    "allow_direct": bodies.boolean,
    "mirror_direct": bodies.boolean,
    "discard_new_per_subject": bodies.boolean,
    "sealed": bodies.boolean,
    "deny_delete": bodies.boolean,
    "deny_purge": bodies.boolean,
    "allow_rollup_hdrs": bodies.boolean,
    "consumer_limits": bodies.nested(
        {"inactive_threshold": bodies.int64, "max_ack_pending": bodies.int64}, ConsumerLimits
    ),
    "allow_msg_ttl": bodies.boolean,
    "subject_delete_marker_ttl": bodies.int64,
    "allow_msg_counter": bodies.boolean,
    "allow_atomic": bodies.boolean,
    "allow_msg_schedules": bodies.boolean,
    "persist_mode": bodies.word(PersistMode, {"": PersistMode.DEFAULT}),
    "allow_batched": bodies.boolean,
    "metadata": bodies.text_map,
    # Of streams made from templates, which nats-server no longer has. Old clients still send it.
    "template_owner": bodies.text,
}
_NAMES: Final = tuple(each.name for each in fields(ApiStreamConfig))
#: What a reply has even when it is 0, false or empty.
_ALWAYS: Final = frozenset(
    (
        *("name", "retention", "max_consumers", "max_msgs", "max_bytes", "max_age"),
        *("max_msgs_per_subject", "discard", "storage", "num_replicas", "compression"),
        *("allow_direct", "mirror_direct", "sealed", "deny_delete", "deny_purge"),
        *("allow_rollup_hdrs", "consumer_limits", "allow_msg_ttl"),
    )
)
_ALWAYS_INSIDE: Final[Mapping[type, frozenset[str]]] = {
    Republish: frozenset(("dest",)),
    SubjectMapping: frozenset(("src", "dest")),
}
assert set(_NAMES) == set(_SCHEMA) - {"template_owner"}

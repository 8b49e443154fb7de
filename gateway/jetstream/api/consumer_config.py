"""The configuration of a consumer of JetStream: what clients send, and what they get back.

Names and units are JetStream's: durations are nanoseconds, -1 is no limit, times are nanoseconds
since 1970. `parse` reads a configuration from JSON, `consumer_checks` makes it valid and complete,
and `to_json` gives the config of a reply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final, Self

from holdfast.gateway.jetstream.api import bodies, errors
from holdfast.gateway.jetstream.api.times import ZERO_TIME_NS, format_time

_OF_THE_SERVER: Final = "_nats."


class DeliverPolicy(StrEnum):
    """Where a consumer begins."""

    ALL = "all"
    LAST = "last"
    NEW = "new"
    BY_START_SEQUENCE = "by_start_sequence"
    BY_START_TIME = "by_start_time"
    LAST_PER_SUBJECT = "last_per_subject"


class AckPolicy(StrEnum):
    """What is acknowledged."""

    NONE = "none"
    ALL = "all"
    EXPLICIT = "explicit"
    #: Answers to flow control say up to where, as `ALL`; only of push consumers.
    FLOW_CONTROL = "flow_control"


class ReplayPolicy(StrEnum):
    """How fast: as fast as clients take it, or in the rhythm in which messages came."""

    INSTANT = "instant"
    ORIGINAL = "original"


class PriorityPolicy(StrEnum):
    """Which pull requests of a group are served first (ADR-42)."""

    NONE = "none"
    #: Those with `min_pending` or `min_ack_pending` are served only when so much waits.
    OVERFLOW = "overflow"
    #: One client gets everything until it falls silent.
    PINNED_CLIENT = "pinned_client"
    #: Those with the lowest `priority` first.
    PRIORITIZED = "prioritized"


@dataclass(frozen=True, slots=True)
class ApiConsumerConfig:
    """One configuration. As parsed it may have anything; `consumer_checks` makes it valid."""

    durable_name: str = ""
    name: str = ""
    description: str = ""
    deliver_policy: DeliverPolicy = DeliverPolicy.ALL
    opt_start_seq: int = 0
    opt_start_time: int | None = None
    ack_policy: AckPolicy = AckPolicy.NONE
    ack_wait: int = 0
    max_deliver: int = 0
    backoff: tuple[int, ...] = ()
    filter_subject: str = ""
    filter_subjects: tuple[str, ...] = ()
    replay_policy: ReplayPolicy = ReplayPolicy.INSTANT
    rate_limit_bps: int = 0
    sample_freq: str = ""
    max_waiting: int = 0
    max_ack_pending: int = 0
    flow_control: bool = False
    headers_only: bool = False
    max_batch: int = 0
    max_expires: int = 0
    max_bytes: int = 0
    deliver_subject: str = ""
    deliver_group: str = ""
    idle_heartbeat: int = 0
    inactive_threshold: int = 0
    num_replicas: int = 0
    mem_storage: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)
    pause_until: int | None = None
    priority_groups: tuple[str, ...] = ()
    priority_policy: PriorityPolicy = PriorityPolicy.NONE
    priority_timeout: int = 0

    @property
    def filters(self) -> tuple[str, ...]:
        """The subjects to deliver; none is all."""
        return (self.filter_subject,) if self.filter_subject else self.filter_subjects

    @property
    def is_push(self) -> bool:
        return self.deliver_subject != ""

    @property
    def is_durable(self) -> bool:
        """Whether it stays when nobody uses it, unless it has an inactive_threshold."""
        return self.durable_name != ""

    @classmethod
    def parse(cls, value: Any, path: str = "") -> Self:
        """Return the configuration that an object of JSON is. Raises ApiError 10025."""
        return cls._made(bodies.read(_SCHEMA, value, path))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the configuration that `to_json` gave; fields of later versions are skipped."""
        return cls._made(bodies.read(_SCHEMA, dict(value), strict=False))

    @classmethod
    def _made(cls, values: dict[str, Any]) -> Self:
        for name in ("direct", "sourcing"):
            values.pop(name, None)
        if "metadata" in values:
            values["metadata"] = {
                name: text
                for name, text in values["metadata"].items()
                if not name.startswith(_OF_THE_SERVER)
            }
        if values.get("pause_until") == ZERO_TIME_NS:
            del values["pause_until"]
        return cls(**values)

    def to_json(self) -> dict[str, Any]:
        """Return the config of a reply."""
        made: dict[str, Any] = {}
        for name in _NAMES:
            value = getattr(self, name)
            if name in _TIMES:
                if value is not None:
                    made[name] = format_time(value)
            elif name in _ALWAYS or (value and value is not PriorityPolicy.NONE):
                made[name] = _plain(value)
        return made


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    return value.value if isinstance(value, StrEnum) else value


def _refused(value: Any, path: str) -> bool:
    """A flag of nat-servers' own consumers, which copy streams."""
    if bodies.boolean(value, path):
        raise errors.invalid_json(f'json: unknown field "{path.rpartition(".")[2]}"')
    return False


_SCHEMA: Final[bodies.Schema] = {
    "durable_name": bodies.text,
    "name": bodies.text,
    "description": bodies.text,
    "deliver_policy": bodies.word(DeliverPolicy, {"undefined": DeliverPolicy.ALL}),
    "opt_start_seq": bodies.uint64,
    "opt_start_time": bodies.time,
    "ack_policy": bodies.word(AckPolicy),
    "ack_wait": bodies.int64,
    "max_deliver": bodies.int64,
    "backoff": bodies.durations,
    "filter_subject": bodies.text,
    "filter_subjects": bodies.texts,
    "replay_policy": bodies.word(ReplayPolicy),
    "rate_limit_bps": bodies.uint64,
    "sample_freq": bodies.text,
    "max_waiting": bodies.int64,
    "max_ack_pending": bodies.int64,
    "flow_control": bodies.boolean,
    "headers_only": bodies.boolean,
    "max_batch": bodies.int64,
    "max_expires": bodies.int64,
    "max_bytes": bodies.int64,
    "deliver_subject": bodies.text,
    "deliver_group": bodies.text,
    "idle_heartbeat": bodies.int64,
    "inactive_threshold": bodies.int64,
    "num_replicas": bodies.int64,
    "mem_storage": bodies.boolean,
    "direct": _refused,
    "sourcing": _refused,
    "metadata": bodies.text_map,
    "pause_until": bodies.time,
    "priority_groups": bodies.texts,
    "priority_policy": bodies.word(PriorityPolicy),
    "priority_timeout": bodies.int64,
}
_NAMES: Final = tuple(each.name for each in fields(ApiConsumerConfig))
_TIMES: Final = frozenset(("opt_start_time", "pause_until"))
#: What a reply has even when it is 0.
_ALWAYS: Final = frozenset(("deliver_policy", "ack_policy", "replay_policy", "num_replicas"))
assert set(_NAMES) == set(_SCHEMA) - {"direct", "sourcing"}

"""What a migration does with a stream: decided from what JetStream tells of it; pure.

The configuration becomes one that the gateway takes. What holdfast does differently is said in
notes, and what it cannot do is a refusal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from holdfast.gateway.jetstream.api.checks.stream_checks import check_create
from holdfast.gateway.jetstream.api.consumer_config import ApiConsumerConfig
from holdfast.gateway.jetstream.api.errors import ApiError
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig
from holdfast.gateway.jetstream.api.times import parse_time

_MS: Final = 1_000_000
_KINDS: Final = (("KV_", "bucket"), ("OBJ_", "object store"))


@dataclass(frozen=True, slots=True)
class SourceState:
    """Where a stream begins and ends, and how much is in between."""

    first_seq: int
    last_seq: int
    messages: int
    bytes: int

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> SourceState:
        """Read a StreamInfo. Raises KeyError, TypeError, ValueError."""
        state = info["state"]
        numbers = [int(state[name]) for name in ("first_seq", "last_seq", "messages", "bytes")]
        if min(numbers) < 0 or numbers[2] > numbers[1]:
            raise ValueError("a state that cannot be")
        return cls(*numbers)


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """A stream to copy. With a `refusal` it is left out."""

    name: str
    state: SourceState
    created_ms: int
    config: ApiStreamConfig
    consumer_count: int
    #: What is different afterwards.
    notes: tuple[str, ...] = ()
    refusal: str = ""

    @property
    def kind(self) -> str:
        """What applications call it."""
        return next((kind for start, kind in _KINDS if self.name.startswith(start)), "stream")


@dataclass(frozen=True, slots=True)
class ConsumerPlan:
    """A durable consumer to copy: everything up to its ack floor is done with."""

    name: str
    config: ApiConsumerConfig
    created_ns: int
    floor_consumer_seq: int
    floor_stream_seq: int


def plan_stream(info: Mapping[str, Any], reserved: Sequence[str]) -> StreamPlan:
    """Return what to do with a stream. `reserved` are the subjects of holdfast itself.

    Raises ValueError if the information makes no sense.
    """
    try:
        state = SourceState.of(info)
        created_ms = parse_time(info["created"]) // _MS
        consumers = int(info["state"].get("consumer_count", 0))
        asked = ApiStreamConfig.from_json(info["config"])
        if not asked.name:
            raise KeyError("name")
    except (ApiError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"what JetStream tells of a stream: {error!r:.200}") from error
    config, notes = _adapted(asked)
    refusal = ""
    try:
        # A sealed stream cannot be created; it is sealed again at the end.
        checked = check_create(replace(config, sealed=False), reserved=reserved)
        config = replace(checked, sealed=config.sealed)
    except ApiError as error:
        refusal = str(error)
    return StreamPlan(asked.name, state, created_ms, config, consumers, notes, refusal)


def plan_consumer(info: Mapping[str, Any]) -> ConsumerPlan | None:
    """Return what to do with a consumer; None for ephemeral ones, which their clients make anew.

    Raises ValueError if the information makes no sense.
    """
    try:
        config = ApiConsumerConfig.from_json(info["config"])
        floor = info["ack_floor"]
        plan = ConsumerPlan(
            str(info["name"]),
            replace(config, num_replicas=min(config.num_replicas, 1)),
            parse_time(info["created"]),
            int(floor["consumer_seq"]),
            int(floor["stream_seq"]),
        )
    except (ApiError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"what JetStream tells of a consumer: {error!r:.200}") from error
    return plan if config.is_durable else None


def _adapted(config: ApiStreamConfig) -> tuple[ApiStreamConfig, tuple[str, ...]]:
    """Return a configuration without what only a cluster of nats-servers has."""
    notes = []
    if config.num_replicas > 1:
        notes.append(f"num_replicas {config.num_replicas} becomes 1: durability is holdfast's own")
    if config.placement is not None:
        notes.append("its placement is left out")
    if config.mirror is not None:
        notes.append("it was a mirror: it is copied as it is, and follows nothing any more")
    if config.sources:
        notes.append("it had sources: it is copied as it is, and follows nothing any more")
    adapted = replace(
        config,
        num_replicas=1,
        placement=None,
        mirror=None,
        mirror_direct=False,
        sources=(),
    )
    return adapted, tuple(notes)

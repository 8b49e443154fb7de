"""Consumers: their configuration, and the description of their state.

A consumer is a named cursor on a stream, shared by several workers. It is part of the store, as the
messages are, and each of its steps is a change with a revision. On the wire and in the file, its
configuration is a map of what differs from the default. Durations are seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Self, TypedDict

from holdfast.protocol.errors import InvalidArgumentError, InvalidNameError
from holdfast.protocol.limits import MAX_ACK_PENDING, MAX_ACK_WAIT_SECONDS
from holdfast.protocol.names import check_store
from holdfast.protocol.store_config import checked_settings


class ConsumerSettings(TypedDict, total=False):
    """The settings of a consumer. A setting that is left out stays as it is; None restores the
    default.
    """

    ack_wait_seconds: float | None
    max_deliveries: int | None
    max_ack_pending: int | None
    dead_letter: str | None


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """The configuration of one consumer."""

    #: A message that is not acknowledged this long after its delivery is delivered again.
    ack_wait_seconds: float = 30.0
    #: A message that was delivered this often is given up. None: never.
    max_deliveries: int | None = None
    #: The most messages that may be delivered and not acknowledged at a time.
    max_ack_pending: int = 1000
    #: The stream of the same tenant that receives messages that are given
    #: up. None: they are only counted.
    dead_letter: str | None = None

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Return the configuration that `wire` names. Raises InvalidArgumentError."""
        return cls().changed({name: wire[name] for name in wire if name in _CHECKS})

    def to_wire(self) -> dict[str, Any]:
        """Return what differs from the default."""
        values = ((name, getattr(self, name)) for name in _DEFAULTS)
        return {name: value for name, value in values if value != _DEFAULTS[name]}

    def changed(self, settings: Mapping[str, Any]) -> Self:
        """Return the configuration with `settings`, each checked. Raises InvalidArgumentError."""
        return replace(self, **checked_settings(settings, _CHECKS, _DEFAULTS))

    @property
    def ack_wait_ms(self) -> int:
        """`ack_wait_seconds` in whole milliseconds, at least one."""
        return max(1, round(self.ack_wait_seconds * 1000))


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """The state of a consumer."""

    name: str
    #: The revision that created it. A later consumer of the same name has another id.
    id: int
    config: ConsumerConfig
    #: The first seq that was never delivered.
    next_seq: int
    #: Every message up to this seq is acknowledged, given up, or was removed from the stream.
    ack_floor: int
    #: Messages that are delivered and neither acknowledged nor given up.
    ack_pending_count: int
    #: Seqs that were never delivered, including those of removed messages.
    lag: int
    #: First deliveries.
    delivered_count: int
    #: Further deliveries of the same messages.
    redelivered_count: int
    #: Acknowledged messages.
    acked_count: int
    #: Messages that were given up, by a worker or after `max_deliveries`.
    given_up_count: int

    @classmethod
    def from_wire(cls, wire: list[Any]) -> Self:
        """Return the info that `to_wire` gave."""
        name, id_, config, *rest = wire
        return cls(name, id_, ConsumerConfig.from_wire(config), *rest[:8])

    def to_wire(self) -> list[Any]:
        """Return its fields in order."""
        return [
            self.name,
            self.id,
            self.config.to_wire(),
            self.next_seq,
            self.ack_floor,
            self.ack_pending_count,
            self.lag,
            self.delivered_count,
            self.redelivered_count,
            self.acked_count,
            self.given_up_count,
        ]


def delay_ms(delay_seconds: float) -> int:
    """Return a delay in whole milliseconds. Raises InvalidArgumentError."""
    if delay_seconds == 0:
        return 0
    return max(1, round(_wait("delay_seconds", delay_seconds) * 1000))


def _wait(name: str, value: Any) -> float:
    if (
        type(value) not in (int, float)
        or not math.isfinite(value)
        or not 0 < value <= MAX_ACK_WAIT_SECONDS
    ):
        reason = f"{value!r:.80} is not a number above 0, at most {MAX_ACK_WAIT_SECONDS:.0f}"
        raise InvalidArgumentError(argument=name, reason=reason)
    return float(value)


def _deliveries(name: str, value: Any) -> int:
    return _count(name, value, (1 << 31) - 1)


def _stream_name(name: str, value: Any) -> str:
    try:
        return str(check_store(value))
    except InvalidNameError as error:
        raise InvalidArgumentError(argument=name, reason=str(error)) from error


def _pending(name: str, value: Any) -> int:
    return _count(name, value, MAX_ACK_PENDING)


def _count(name: str, value: Any, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise InvalidArgumentError(
            argument=name, reason=f"it must be 1 to {most}, not {value!r:.80}"
        )
    return value


_CHECKS: Final[dict[str, Callable[[str, Any], Any]]] = {
    "ack_wait_seconds": _wait,
    "max_deliveries": _deliveries,
    "max_ack_pending": _pending,
    "dead_letter": _stream_name,
}
_DEFAULTS: Final[dict[str, Any]] = {each.name: each.default for each in fields(ConsumerConfig)}
assert list(_CHECKS) == list(_DEFAULTS) == list(ConsumerSettings.__annotations__)

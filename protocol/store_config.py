"""The configuration of a store: its limits, and everything else that is chosen per store.

It is part of the store and is changed by an operation like any other, so it has a revision and
survives restarts, changes of owner and snapshots. On the wire and in the file it is a map of what
differs from the default; durations are seconds, `durability` and `discard` are words. A name that
this version does not know is ignored when read, and refused when set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, Final, Literal, Self, TypedDict

from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.limits import (
    DEDUPE_WINDOW_SECONDS,
    MAX_DEDUPE_WINDOW_SECONDS,
    MAX_DESCRIPTION_BYTES,
    MAX_HISTORY,
    MAX_RETENTION_SECONDS,
)
from holdfast.protocol.messages import AnyDurability, Durability


class Discard(StrEnum):
    """What happens when a store reaches `max_messages` or `max_bytes`."""

    #: The messages with the lowest seqs, or the keys that were set longest ago, are removed.
    OLD = "old"
    #: The write is refused.
    NEW = "new"


class ConfigSettings(TypedDict, total=False):
    """The settings that `configure` takes. A setting that is left out stays as it is; None restores
    the default.
    """

    max_messages: int | None
    max_bytes: int | None
    max_age_seconds: float | None
    max_message_bytes: int | None
    max_messages_per_second: float | None
    max_bytes_per_second: float | None
    discard: Discard | Literal["old", "new"] | None
    durability: AnyDurability | None
    dedupe_window_seconds: float | None
    archive_after_seconds: float | None
    max_messages_per_subject: int | None
    discard_new_per_subject: bool | None
    subject_marker_seconds: float | None
    first_seq: int | None
    deny_delete: bool | None
    deny_purge: bool | None
    sealed: bool | None
    serving_epoch: int | None
    history: int | None
    chain: bool | None
    ephemeral: bool | None
    description: str | None


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """The configuration of one store. A limit that is None does not exist."""

    #: Messages of a stream, keys of a kv.
    max_messages: int | None = None
    #: Bytes of values, packed headers and, in a kv, keys, as `Head.bytes` counts them.
    max_bytes: int | None = None
    #: A message or key is removed this long after it was set.
    max_age_seconds: float | None = None
    #: Bytes of one message or entry before compression, without the headers that holdfast adds.
    max_message_bytes: int | None = None
    #: The rate of sets; one second's worth may come at once.
    max_messages_per_second: float | None = None
    #: The same, in bytes.
    max_bytes_per_second: float | None = None
    #: What happens at `max_messages` and `max_bytes`.
    discard: Discard = Discard.OLD
    #: Of writes that do not name one; DEFAULT is the server's.
    durability: Durability = Durability.DEFAULT
    #: How long a `msg_id` is remembered, but no longer than `max_age_seconds`.
    dedupe_window_seconds: float = DEDUPE_WINDOW_SECONDS
    #: Messages older than this leave the store's file once they are in the archive.
    archive_after_seconds: float | None = None
    #: Messages of one subject: above it, the oldest ones of the subject are removed.
    max_messages_per_subject: int | None = None
    #: Refuse a message above `max_messages_per_subject` instead.
    discard_new_per_subject: bool = False
    #: When age or ttl removes the last message of a subject, a marker stays there for this long.
    subject_marker_seconds: float | None = None
    #: The seq of the first message. It can be set until the first message is appended.
    first_seq: int = 1
    #: Refuse to delete or replace messages.
    deny_delete: bool = False
    #: Refuse to trim, to purge and to roll up.
    deny_purge: bool = False
    #: Refuse every change of messages.
    sealed: bool = False
    #: Who serves the stream for others: a number that only grows. A write that names another is
    #: refused.
    serving_epoch: int | None = None
    #: How many values of each key a kv keeps, the present one included.
    history: int = 1
    #: Keep a chain of hashes over the messages, or the sets of a kv. It cannot be ended, and
    #: messages of such a stream cannot be replaced.
    chain: bool = False
    #: Keep the content in the owner's memory alone. It ends with its owner, and can be set only as
    #: long as the store is empty.
    ephemeral: bool = False
    #: Text of at most MAX_DESCRIPTION_BYTES.
    description: str = ""

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Return the configuration that `wire` names. Raises InvalidArgumentError."""
        return cls().changed({name: wire[name] for name in wire if name in _CHECKS})

    @property
    def dedupe_ms(self) -> int:
        """How long a `msg_id` is remembered, in milliseconds.

        It is at most as long as its message may exist. Otherwise an append could be answered with
        the seq of a message that expired.
        """
        seconds = self.dedupe_window_seconds
        if self.max_age_seconds is not None:
            seconds = min(seconds, self.max_age_seconds)
        return int(seconds * 1000)

    def to_wire(self) -> dict[str, Any]:
        """Return what differs from the default, in the form of the wire and the store file."""
        values = ((name, getattr(self, name)) for name in _DEFAULTS)
        return {name: _plain(value) for name, value in values if value != _DEFAULTS[name]}

    def changed(self, settings: Mapping[str, Any]) -> Self:
        """Return the configuration with `settings`, each checked. Raises InvalidArgumentError."""
        return replace(self, **checked_settings(settings, _CHECKS, _DEFAULTS))


def ttl_ms(ttl_seconds: Any) -> int:
    """Return a ttl in whole milliseconds, at least one. Raises InvalidArgumentError."""
    return max(1, round(_seconds("ttl_seconds", ttl_seconds) * 1000))


def checked_settings(
    settings: Mapping[str, Any],
    checks: Mapping[str, Callable[[str, Any], Any]],
    defaults: Mapping[str, Any],
) -> dict[str, Any]:
    """Return `settings` as their checks return them; None becomes the default. Raises
    InvalidArgumentError, also for a name without a check."""
    checked: dict[str, Any] = {}
    for name, value in settings.items():
        check = checks.get(name)
        if check is None:
            known = ", ".join(checks)
            raise InvalidArgumentError(
                argument=repr(name)[:80], reason=f"it must be one of {known}"
            )
        checked[name] = defaults[name] if value is None else check(name, value)
    return checked


def _plain(value: Any) -> Any:
    if isinstance(value, Durability):
        return value.word
    return value.value if isinstance(value, Discard) else value


def _count(name: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value < 1 << 63:
        raise InvalidArgumentError(
            argument=name, reason=f"{value!r:.80} is not an integer from 1 on"
        )
    return value


def _flag(name: str, value: Any) -> bool:
    if type(value) is not bool:
        raise InvalidArgumentError(argument=name, reason=f"{value!r:.80} is neither true nor false")
    return value


def _first_seq(name: str, value: Any) -> int:
    if _count(name, value) > _MAX_FIRST_SEQ:
        raise InvalidArgumentError(argument=name, reason=f"{value!r:.80} is too large")
    return int(value)


def _history(name: str, value: Any) -> int:
    if _count(name, value) > MAX_HISTORY:
        raise InvalidArgumentError(argument=name, reason=f"{value!r:.80} is above {MAX_HISTORY}")
    return int(value)


def _number(name: str, value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:
        raise InvalidArgumentError(argument=name, reason=f"{value!r:.80} is not a number above 0")
    number: float = value
    return number


def _seconds(name: str, value: Any) -> float:
    if _number(name, value) > MAX_RETENTION_SECONDS:
        reason = f"{value!r:.80} is above {MAX_RETENTION_SECONDS:.0f} seconds"
        raise InvalidArgumentError(argument=name, reason=reason)
    return float(value)


def _window(name: str, value: Any) -> float:
    if value != 0 and _number(name, value) > MAX_DEDUPE_WINDOW_SECONDS:
        reason = f"{value!r:.80} is above {MAX_DEDUPE_WINDOW_SECONDS:.0f} seconds"
        raise InvalidArgumentError(argument=name, reason=reason)
    return float(value)


def _discard(name: str, value: Any) -> Discard:
    try:
        return Discard(value)
    except ValueError:
        words = ", ".join(Discard)
        raise InvalidArgumentError(argument=name, reason=f"it must be one of {words}") from None


def _durability(name: str, value: Any) -> Durability:
    try:
        return Durability[value.upper()] if isinstance(value, str) else Durability(value)
    except (KeyError, ValueError):
        words = ", ".join(level.word for level in Durability)
        raise InvalidArgumentError(argument=name, reason=f"it must be one of {words}") from None


def _text(name: str, value: Any) -> str:
    if type(value) is not str:
        raise InvalidArgumentError(argument=name, reason=f"it must be text, not {value!r:.80}")
    try:
        size_bytes = len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(argument=name, reason="not encodable as UTF-8") from error
    if size_bytes > MAX_DESCRIPTION_BYTES:
        reason = f"it has {size_bytes} bytes; at most {MAX_DESCRIPTION_BYTES} are allowed"
        raise InvalidArgumentError(argument=name, reason=reason)
    return value


#: Far more seqs follow than there can be messages.
_MAX_FIRST_SEQ: Final = 1 << 62
_CHECKS: Final[dict[str, Callable[[str, Any], Any]]] = {
    "max_messages": _count,
    "max_bytes": _count,
    "max_age_seconds": _seconds,
    "max_message_bytes": _count,
    "max_messages_per_second": _number,
    "max_bytes_per_second": _number,
    "discard": _discard,
    "durability": _durability,
    "dedupe_window_seconds": _window,
    "archive_after_seconds": _seconds,
    "max_messages_per_subject": _count,
    "discard_new_per_subject": _flag,
    "subject_marker_seconds": _seconds,
    "first_seq": _first_seq,
    "deny_delete": _flag,
    "deny_purge": _flag,
    "sealed": _flag,
    "serving_epoch": _count,
    "history": _history,
    "chain": _flag,
    "ephemeral": _flag,
    "description": _text,
}
_DEFAULTS: Final[dict[str, Any]] = {each.name: each.default for each in fields(StoreConfig)}
#: A kv has no seqs, and with them neither msg_ids, subjects nor an archive.
OF_STREAMS: Final = frozenset(
    (
        "dedupe_window_seconds",
        "archive_after_seconds",
        "max_messages_per_subject",
        "discard_new_per_subject",
        "subject_marker_seconds",
        "first_seq",
        "deny_delete",
        "deny_purge",
        "sealed",
        "serving_epoch",
    )
)
#: A stream keeps its messages anyway.
OF_KVS: Final = frozenset(("history",))
DEFAULT_CONFIG: Final = StoreConfig()
assert list(_CHECKS) == list(_DEFAULTS) == list(ConfigSettings.__annotations__)

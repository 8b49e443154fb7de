"""Dates within JSON: a datetime is `{"$date": "2026-11-23T10:22:23.5Z"}`, as MongoDB's extended
JSON has it.

Pure. Every value comes back as it was: a dictionary of the application that looks like a date is
escaped by one more dollar sign (`{"$$date": ...}`). JSON without such a key is written and read as
before, at the same speed.
"""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import Any, Final

_DATE: Final = "$date"
#: How the key of a date ends in the text. Within a text value the quote would be escaped, and no
#: text value is followed by a colon.
_KEY_END: Final = '$date":'
_KEY_END_BYTES: Final = b'$date"'


def dumps(value: Any) -> str:
    """Return a value as compact JSON. Raises TypeError, ValueError, OverflowError,
    RecursionError."""
    date_count = 0

    def convert(other: Any) -> dict[str, str]:
        nonlocal date_count
        date_count += 1
        return {_DATE: _text_of(other)}

    text = _dumped(value, convert)
    if text.count(_KEY_END) > date_count:
        # Keys of the application end like that, so some may have to be escaped.
        text = _dumped(_escaped(value), convert)
    return text


def loads(data: bytes) -> Any:
    """Return the value that `dumps` was given. Raises ValueError, RecursionError."""
    if _KEY_END_BYTES in data:
        return json.loads(data, object_hook=_unescaped)
    return json.loads(data)


def _dumped(value: Any, convert: Any) -> str:
    return json.dumps(
        value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=convert
    )


def _text_of(value: Any) -> str:
    """Return a datetime as text, in UTC."""
    if not isinstance(value, datetime):
        advice = "; give it a time and a time zone" if isinstance(value, date) else ""
        raise TypeError(f"{type(value).__name__} is not JSON serializable{advice}")
    if value.tzinfo is None:
        raise TypeError("a datetime needs a time zone")
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _looks_like_date(items: dict[Any, Any]) -> bool:
    if len(items) != 1:
        return False
    (key,) = items
    return isinstance(key, str) and key.endswith(_DATE) and key.strip("$") == _DATE[1:]


def _escaped(value: Any) -> Any:
    if isinstance(value, dict):
        if _looks_like_date(value):
            ((key, inner),) = value.items()
            return {f"${key}": _escaped(inner)}
        return {key: _escaped(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(inner) for inner in value]
    return value


def _unescaped(items: dict[str, Any]) -> Any:
    if not _looks_like_date(items):
        return items
    ((key, inner),) = items.items()
    if key != _DATE:
        return {key[1:]: inner}
    try:
        found = datetime.fromisoformat(inner)
        # What others wrote without a time zone names no moment.
        return items if found.tzinfo is None else found.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        return items

"""How log lines look: as text for people, or as one JSON object each for programs.

Every line of ours is an event and its fields: `store.taken_over store=%s records=%d`. As JSON that
is `{"time": ..., "level": ..., "event": "store.taken_over", "fields": {"store": ..., "records":
3}}`: numbers stay numbers, and everything else is text. A line of a library, which has another
form, is a `message`. An exception is an `exception`, with its traceback.
"""

from __future__ import annotations

import json
import logging
import re
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Final


class LogFormat(StrEnum):
    """How a process logs."""

    TEXT = "text"
    JSON = "json"


_EVENT: Final = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)+|%s")
_PLACE: Final = r"%[-+0 #]*\d*(?:\.\d+)?[sdrfgx]"
_FIELD: Final = re.compile(rf" (\w+)=(?:({_PLACE})|([^\s%]+))")
#: Templates are literals in our code, a few hundred; those with an event of a caller come and go.
_MAX_TEMPLATES: Final = 2048


def time_text(created: float) -> str:
    """Return a time as ISO 8601 with the zone, as logs of several hosts are read together."""
    return datetime.fromtimestamp(created).astimezone().isoformat(timespec="milliseconds")


class ZonedFormatter(logging.Formatter):
    """Formats lines for people."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return time_text(record.created)


class JsonFormatter(logging.Formatter):
    """Formats lines as JSON."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": time_text(record.created),
            "level": record.levelname.lower(),
        }
        line |= _said(record)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def formatter(log_format: LogFormat) -> logging.Formatter:
    """Return the formatter of a process."""
    if log_format is LogFormat.JSON:
        return JsonFormatter()
    return ZonedFormatter("%(asctime)s %(levelname)s %(message)s")


def _said(record: logging.LogRecord) -> dict[str, object]:
    """Return the event and its fields, or the message of a line that has another form."""
    places = _places(record.msg) if isinstance(record.msg, str) else None
    given = record.args if isinstance(record.args, tuple) else ()
    if places is None or sum(text.startswith("%") for _, text in places) != len(given):
        return {"message": record.getMessage()}
    arguments = iter(given)
    values = [
        (name, _value(text, next(arguments)) if text.startswith("%") else text)
        for name, text in places
    ]
    return {"event": values[0][1], "fields": dict(values[1:])}


@lru_cache(_MAX_TEMPLATES)
def _places(template: str) -> tuple[tuple[str, str], ...] | None:
    """Return the event and the fields of a template, each with its text: that of the place of an
    argument begins with %. None if it has another form."""
    event = _EVENT.match(template)
    if event is None:
        return None
    found = [("", event.group())]
    position = event.end()
    while position < len(template):
        field = _FIELD.match(template, position)
        if field is None:
            return None
        found.append((field[1], field[2] or field[3]))
        position = field.end()
    return tuple(found)


def _value(place: str, argument: object) -> object:
    """Return an argument as it is shown in text, but numbers as numbers."""
    if argument is None or type(argument) in (bool, int):
        return argument
    text = place % argument
    if type(argument) is float:
        try:
            return float(text)
        except ValueError:
            return text
    return text

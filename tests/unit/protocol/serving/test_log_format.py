"""Log lines as JSON: the same events and fields as in text."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from holdfast.protocol.serving.log_format import JsonFormatter, LogFormat, formatter
from holdfast.protocol.serving.mishaps import Mishaps
from holdfast.protocol.serving.trouble import Trouble


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.found: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        assert "\n" not in text
        self.found.append(json.loads(text))


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def logger(lines: Lines) -> logging.Logger:
    found = logging.getLogger("tests.log_format")
    found.setLevel(logging.INFO)
    found.propagate = False
    found.handlers = [lines]
    return found


def test_a_line_is_an_event_and_its_fields(logger: logging.Logger, lines: Lines) -> None:
    logger.warning(
        "store.taken_over store=%s records=%d seconds=%.1f cold=%s epoch=%s why=\"a b\"", "x", 3,
        1.26, True, None,
    )
    logger.info("server.stopped state=old records=%d reason=%.5s", 4, 'say "no"\n=')
    first, second = lines.found
    assert first["message"].startswith("store.taken_over"), "its last field has another form"
    assert second.pop("time")
    assert second == {
        "level": "info",
        "event": "server.stopped",
        "fields": {"state": "old", "records": 4, "reason": 'say "'},
    }


def test_numbers_stay_numbers_as_they_are_shown(logger: logging.Logger, lines: Lines) -> None:
    values = (1, 1.26, False, None, ValueError(), 2.5)
    logger.info("a.b n=%d x=%.1f flag=%s none=%s e=%s y=%s", *values)
    assert lines.found[0]["fields"] == {
        "n": 1, "x": 1.3, "flag": False, "none": None, "e": "", "y": 2.5
    }


def test_lines_of_troubles_and_bugs_have_the_same_form(
    logger: logging.Logger, lines: Lines
) -> None:
    trouble = Trouble(logger, "fence.unreadable")
    trouble.note("reason=%s", "it hangs")
    trouble.over()
    try:
        raise ZeroDivisionError
    except ZeroDivisionError as error:
        Mishaps(logger).note("frame.failed", "hf.acme", error)
    begun, over, bug = lines.found
    assert (begun["event"], begun["fields"]) == ("fence.unreadable", {"reason": "it hangs"})
    assert (over["event"], over["fields"]["event"]) == ("trouble.over", "fence.unreadable")
    assert (bug["event"], bug["fields"]) == ("frame.failed", {"what": "hf.acme", "count": 1})
    assert "ZeroDivisionError" in bug["exception"]


def test_what_others_log_is_a_message(logger: logging.Logger, lines: Lines) -> None:
    logger.info("Some words of a library: %s", "why")
    logger.info("server.started server=%(name)s", {"name": "p1"})
    logger.info("100% x")
    logger.info(ValueError("an object"))
    assert [line["message"] for line in lines.found] == [
        "Some words of a library: why", "server.started server=p1", "100% x", "an object"
    ]


def test_text_is_as_before() -> None:
    record = logging.LogRecord("test", logging.INFO, __file__, 1, "a.b c=%d", (5,), None)
    assert formatter(LogFormat.TEXT).format(record).endswith(" INFO a.b c=5")

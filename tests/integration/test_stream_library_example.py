"""The example of the stream library: an event log, and the Flask application around it."""

from __future__ import annotations

import importlib.util
import re
import runpy
from pathlib import Path
from types import ModuleType

import pytest

from holdfast.stream_library.library import open_library

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("event_log", ROOT / "examples" / "event_log.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_events_are_kept_in_order_and_can_be_forgotten(example: ModuleType, tmp_path: Path) -> None:
    folder = str(tmp_path / "events")
    log = example.EventLog(folder)
    assert log.after(0) == []
    assert [log.add({"what": what}) for what in ("signed up", "left")] == [1, 2]
    assert [each["event"] for each in log.after(0)] == [{"what": "signed up"}, {"what": "left"}]
    log.forget(1)
    log.close()
    log = example.EventLog(folder)
    assert [each["number"] for each in log.after(0)] == [2]
    assert log.after(2) == log.after(99) == []
    log.close()


def test_the_application_answers_what_is_stored(example: ModuleType, tmp_path: Path) -> None:
    log = example.EventLog(str(tmp_path / "events"))
    browser = example.create_app(log).test_client()
    added = browser.post("/events", json={"what": "signed up"})
    assert (added.status_code, added.json) == (201, {"number": 1})
    [event] = browser.get("/events?after=0").json
    assert event["event"] == {"what": "signed up"}
    assert browser.get("/events?after=1").json == []
    log.close()


def test_the_page_shows_a_program_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "stream-library.md").read_text()
    programs = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    bucket = (tmp_path / "bucket").as_uri()
    program = tmp_path / "program.py"
    program.write_text(programs[0].replace("s3://backups/events", bucket))
    runpy.run_path(str(program))
    assert "b'logged in' {'user': 'ada'}" in capsys.readouterr().out
    with open_library(tmp_path / "data") as library:
        assert library.stream("events").start_offset == 3

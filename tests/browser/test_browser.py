"""The browser of the tests itself: what tests of pages rely on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.browser import Browser, PageError

PAGE = """<!doctype html><title>here</title>
<label>Name <input id=given></label><button onclick="document.title = given.value">Take</button>
<script>addEventListener("keydown", (event) => { if (event.key === "Escape") broken(); })</script>
"""


def test_a_visitor_types_and_clicks_and_problems_are_told(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(PAGE)
    with browser.page(f"file://{tmp_path}/page.html", width=320) as page:
        page.prefer("dark")
        assert page.evaluate("innerWidth") == 320
        assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
        page.click("#given")
        page.type("Ada")
        page.press("!")
        page.press("Tab")
        page.press("Enter")
        page.wait_for("document.title === 'Ada!'")
        assert page.wait_for("document.querySelector('button')") is True
        assert {("textbox", "Name"), ("button", "Take")} <= set(page.accessible())
        assert page.screenshot().startswith(b"\x89PNG")
        assert not page.problems
        page.press("Escape")
        page.evaluate("0")
        assert "broken is not defined" in page.problems[0]
        with pytest.raises(PageError, match="still not so"):
            page.wait_for("document.title === 'Bob'", seconds=0)
        with pytest.raises(PageError, match="not defined"):
            page.evaluate("missing")

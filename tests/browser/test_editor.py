"""The example of a shared editor: two people at two pages, while a server of the cluster dies."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.browser import axe
from tests.browser.browser import Browser, Page
from tests.browser.static_files import served
from tests.support.holdfast_up import running_up

ROOT = Path(__file__).parents[2]
EDITOR = ROOT / "examples" / "editor"
TEXT = "document.getElementById('text').value"
STATE = "document.getElementById('state').textContent"
PEOPLE = "document.getElementById('people').innerText"
HEARD = "Array.from(document.querySelectorAll('#chat p'), (line) => line.textContent)"


def entered(browser: Browser, url: str, name: str) -> Page:
    page = browser.open(url)
    page.wait_for(f"{STATE} === 'All changes saved'")
    page.click("#name")
    page.press("a", "Control")
    page.type(name)
    page.click("#text")
    return page


def test_two_people_lose_and_double_nothing_while_a_server_is_killed(
    browser: Browser, tmp_path: Path
) -> None:
    with (
        served(EDITOR) as site,
        running_up(tmp_path / "up", "--origin", site, http=True) as cluster,
    ):
        url = f"{site}/?page=plan&gateway={cluster.welcome['http']}"
        ada, grace = entered(browser, url, "Ada"), entered(browser, url, "Grace")
        ada.wait_for(f"{PEOPLE} === 'Grace'")
        grace.wait_for(f"{PEOPLE} === 'Ada'")
        ada.type("one two three")
        grace.wait_for(f"{TEXT} === 'one two three'")
        grace.press("Home", "Control")
        for number in range(40):
            ada.type(f" a{number}")
            grace.type(f"g{number} 😀")
            if number % 5 == 4:
                ada.press("Backspace")
            if number == 10:
                rows = cluster.json("stores", "editor.plan.edits")["stores"]
                pid = cluster.pids()[rows[0]["server"]]
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                say(ada, "a server was killed")
                say(grace, "I saw nothing")
        ada.go_offline()
        ada.wait_for(f"{STATE}.startsWith('Offline')")
        ada.type(" offline")
        # What waits outlives the page.
        ada.go_offline(False)
        ada.reload()
        expected = "".join(f"g{number} 😀" for number in range(40)) + "one two three"
        expected += "".join(f" a{n}"[: -1 if n % 5 == 4 else None] for n in range(40)) + " offline"
        for page in (ada, grace):
            page.wait_for(f"{TEXT} === {expected!r}")
            page.wait_for(f"{STATE} === 'All changes saved'")
            assert sorted(page.wait_for(f"{HEARD}.length === 2 && {HEARD}")) == [
                "I saw nothing",
                "a server was killed",
            ]
        ada.wait_for("document.querySelector('#carets span')?.textContent === 'Grace'")
        grace.goto("about:blank")
        ada.wait_for(f"{PEOPLE} === ''")
        grace.goto(url)
        grace.wait_for(f"{TEXT} === {expected!r}")
        ada.close()
        grace.close()


def say(page: Page, words: str) -> None:
    page.click("#draft")
    page.type(words)
    page.press("Enter")
    page.evaluate("document.getElementById('text').focus()")


def test_the_page_has_a_name_for_everything_and_fits_small_screens(browser: Browser) -> None:
    with served(EDITOR) as site, browser.page(f"{site}/?gateway={site}", width=320) as page:
        names = {name for role, name in page.accessible() if role in ("textbox", "button", "log")}
        assert names == {
            "Your name",
            "The text that everybody edits",
            "Message",
            "Send",
            "Messages",
        }
        assert page.evaluate("document.documentElement.scrollWidth") == 320
        page.wait_for(f"{STATE} === 'No answer from {site}'")


def test_a_checker_of_accessibility_finds_nothing(browser: Browser) -> None:
    source = axe.script()
    with served(EDITOR) as site, browser.page(f"{site}/?gateway={site}") as page:
        page.wait_for(f"{STATE} === 'No answer from {site}'")
        assert axe.violations(page, source) == []


def test_the_merge_core() -> None:
    if (node := shutil.which("node")) is None:
        pytest.skip("needs Node, which runs the tests of the merge core")
    command = [node, "--test", str(ROOT / "tests" / "browser" / "editor")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_the_editor_is_as_short_as_its_page_says() -> None:
    lines = [line for path in EDITOR.glob("*.js") for line in path.read_text().splitlines()]
    assert len(lines) < 300
    assert max(map(len, lines)) <= 100

"""The console in a browser: what operators see and press, also when the cluster fails."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.browser import axe
from tests.browser.browser import Browser, Page
from tests.support.holdfast_up import RunningUp, running_up
from tests.support.http_gateway import running_http_gateway

HOSTILE = "<img src=x onerror=document.title='taken'>"
_VIEWS = ("#/", "#/stores", "#/stores/kv/settings", "#/stores/stream/chat", "#/consumers")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    data = tmp_path_factory.mktemp("console") / "data"
    with running_up(data, "--servers", "2", http=True) as running:
        for arguments in (
            ("kv", "set", "settings", "theme", "dark"),
            ("kv", "set", "settings", HOSTILE, f"<script>{HOSTILE}</script>\u202e"),
            ("stream", "append", "chat", f"hello {HOSTILE}"),
        ):
            running.output(*arguments)
        yield running


@pytest.fixture
def page(browser: Browser, cluster: RunningUp) -> Iterator[Page]:
    with browser.page(f"{cluster.welcome['http']}/") as page:
        yield page
        assert page.problems == []


def open_view(page: Page, name: str) -> None:
    """Show a view of the page that is open."""
    page.evaluate(f"location.hash = {name!r}")


def wait_for_text(page: Page, selector: str, text: str) -> None:
    """Return once something that fits the selector has the text."""
    shown = f"[...document.querySelectorAll({selector!r})].map((each) => each.textContent)"
    page.wait_for(f"{shown}.some((each) => each.includes({text!r}))")


def choose_key(page: Page, key: str) -> None:
    """Open a key of the kv that is shown."""
    row = f"[...document.querySelectorAll('.two .row')].find((e) => e.textContent === {key!r})"
    page.wait_for(f"{row}?.click() === undefined && {row} !== undefined")


def test_it_shows_the_cluster_and_asks_nobody_else(page: Page, cluster: RunningUp) -> None:
    wait_for_text(page, "th[scope=row]", "s2")
    wait_for_text(page, "#health", "2 servers live")
    wait_for_text(page, ".findings", "HF-109")
    page.wait_for("document.querySelectorAll('.chart').length === 8")
    own = str(cluster.welcome["http"])
    assert {url.startswith(own) for url in page.requests} == {True}
    found = page.accessible()
    roles = [role for role, _ in found]
    assert {"banner", "navigation", "main", "log", "table", "heading"} <= set(roles)
    nameless = {role for role, name in found if not name} & {"button", "link", "slider", "textbox"}
    assert nameless == set()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_checker_of_accessibility_finds_nothing(page: Page, scheme: str) -> None:
    source = axe.script()
    page.prefer(scheme)
    wait_for_text(page, "th[scope=row]", "s1")
    for view in _VIEWS:
        open_view(page, view)
        page.wait_for("!document.querySelector('main').innerText.includes('Reading …')")
        assert axe.violations(page, source) == [], view


def test_nothing_is_cut_off_at_320_pixels(page: Page) -> None:
    wait_for_text(page, "th[scope=row]", "s1")
    page.resize(320, 700)
    for view in _VIEWS:
        open_view(page, view)
        page.wait_for("!document.querySelector('main').innerText.includes('Reading …')")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view


def test_it_is_used_with_the_keyboard_alone(page: Page) -> None:
    wait_for_text(page, "th[scope=row]", "s1")
    active = "document.activeElement.textContent"
    page.press("Tab")
    assert page.evaluate(active) == "Skip to the content"
    while page.evaluate("document.activeElement.dataset.chart") != "operations_per_second":
        page.press("Tab")
    page.press("ArrowLeft")
    page.wait_for("document.activeElement.querySelector('time').textContent")
    page.press("Tab", "Shift")
    while page.evaluate(active) != "Stores":
        page.press("Tab", "Shift")
    page.press("Enter")
    page.wait_for("document.activeElement.id === 'main'")
    page.press("Tab")
    page.type("sett")
    wait_for_text(page, "[role=status]", "1 store")
    page.press("Tab")
    page.press("Tab")
    page.press("Enter")
    page.wait_for("document.activeElement.textContent === 'settings'")


def test_a_value_is_edited_and_what_somebody_else_wrote_is_not_overwritten(
    page: Page, cluster: RunningUp
) -> None:
    open_view(page, "#/stores/kv/settings")
    choose_key(page, "theme")
    page.wait_for("document.querySelector('#key-value').value === 'dark'")
    page.click("#key-value")
    page.type("er than ")
    page.click("form.form button.primary")
    wait_for_text(page, ".said", "Saved, synced.")
    value = "document.querySelector('#key-value').value"
    assert cluster.output("kv", "get", "settings", "theme") == page.evaluate(value)
    cluster.output("kv", "set", "settings", "theme", "light")
    page.click("form.form button.primary")
    wait_for_text(page, ".said", "Somebody else changed it")
    assert cluster.output("kv", "get", "settings", "theme") == "light"
    # The browser reports the refusal, which the page shows.
    page.problems[:] = [each for each in page.problems if "412" not in each]


def test_what_stores_hold_stays_text(page: Page) -> None:
    open_view(page, "#/stores/stream/chat")
    wait_for_text(page, ".value", f"hello {HOSTILE}")
    open_view(page, "#/stores/kv/settings")
    choose_key(page, HOSTILE)
    page.wait_for(f"document.querySelector('#key-value').value.includes({HOSTILE!r})")
    assert page.evaluate("document.querySelectorAll('main img, main script').length") == 0
    assert page.evaluate("document.title").startswith("settings")


def test_new_messages_are_shown_as_they_come(page: Page, cluster: RunningUp) -> None:
    open_view(page, "#/stores/stream/chat")
    wait_for_text(page, ".value", "hello")
    page.evaluate(
        "[...document.querySelectorAll('button')].find((e) => e.textContent === 'Follow').click()"
    )
    wait_for_text(page, "[role=status]", "New messages come here.")
    cluster.output("stream", "append", "chat", "just now")
    wait_for_text(page, ".messages .value", "just now")


def test_it_asks_for_a_token_where_one_is_needed(browser: Browser, cluster: RunningUp) -> None:
    with (
        running_http_gateway(cluster.nats, "--require-token") as gateway,
        browser.page(f"http://127.0.0.1:{gateway.port}/") as page,
    ):
        page.wait_for("document.querySelector('dialog').open")
        wait_for_text(page, "#token-reason", "a token is needed")
        page.type("hft1.wrong")
        page.press("Enter")
        page.wait_for("sessionStorage.length === 1 && document.querySelector('dialog').open")
        assert all("401" in each for each in page.problems)


def test_a_server_that_is_killed_is_seen_to_die_and_to_return(
    page: Page, cluster: RunningUp
) -> None:
    wait_for_text(page, "#health", "2 servers live")
    os.kill(cluster.pids()["s2"] or 0, signal.SIGKILL)
    wait_for_text(page, ".log li", "s2 began a new life")
    assert page.evaluate("document.querySelector('.log').ariaLive") == "polite"

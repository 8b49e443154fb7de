"""Pages of a headless Chromium, for tests.

    page = browser.open("http://127.0.0.1:8080/")        # a visitor of its own: no shared storage
    page.wait_for("document.title === 'holdfast'")
    page.click("button.new"); page.type("hello"); page.press("Enter")
    assert page.evaluate("document.querySelectorAll('li').length") == 1
    assert not page.problems

`problems` are exceptions, errors on the console and requests that failed; `requests` are the URLs
that the page asked for. Tests that fail get a picture of the page with `page.screenshot()`.
"""

from __future__ import annotations

import base64
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.browser.devtools import DEADLINE_SECONDS, DevTools, find_chromium

_POLL_SECONDS: Final = 0.02
#: What the browser calls keys, and the text that some give.
_KEYS: Final = {
    "Enter": (13, "\r"),
    "Tab": (9, ""),
    "Escape": (27, ""),
    "Backspace": (8, ""),
    "Delete": (46, ""),
    "Home": (36, ""),
    "End": (35, ""),
    "ArrowLeft": (37, ""),
    "ArrowUp": (38, ""),
    "ArrowRight": (39, ""),
    "ArrowDown": (40, ""),
    " ": (32, " "),
}
_MODIFIERS: Final = {"Alt": 1, "Control": 2, "Meta": 4, "Shift": 8}


class PageError(AssertionError):
    """A script of a test raised an exception in the page, or what it waits for did not come."""


class Page:
    """One page that a visitor has open."""

    def __init__(self, tools: DevTools, context: str, *, width: int, height: int) -> None:
        self._tools = tools
        self._context = context
        target = tools.call("Target.createTarget", url="about:blank", browserContextId=context)
        self._target: str = target["targetId"]
        attached = tools.call("Target.attachToTarget", targetId=self._target, flatten=True)
        self._session: str = attached["sessionId"]
        #: What went wrong in the page so far.
        self.problems: list[str] = []
        #: The URLs that it asked for so far.
        self.requests: list[str] = []
        self._loads = 0
        tools.listen(self._session, self._happened)
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self._call("Emulation.setFocusEmulationEnabled", enabled=True)
        self.resize(width, height)

    def goto(self, url: str) -> None:
        """Open a URL, and return once it is loaded with what it refers to."""
        before = self._loads
        answer = self._call("Page.navigate", url=url)
        if "errorText" in answer:
            raise PageError(f"{url}: {answer['errorText']}")
        give_up_at = time.monotonic() + DEADLINE_SECONDS
        while self._loads == before:
            self._tools.take_events(0.1)
            if time.monotonic() > give_up_at:
                raise PageError(f"{url} is not loaded after {DEADLINE_SECONDS:g} s")

    def reload(self) -> None:
        """Load the page anew."""
        self.goto(self.evaluate("location.href"))

    def evaluate(self, expression: str) -> Any:
        """Return what an expression of JavaScript gives, awaited. Raises PageError."""
        answer = self._call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise PageError(f"{expression}: {_exception(answer['exceptionDetails'])}")
        return answer["result"].get("value")

    def wait_for(self, expression: str, seconds: float = DEADLINE_SECONDS) -> Any:
        """Return the first value of an expression that is true in JavaScript, True for an element
        of the page. Raises PageError."""
        give_up_at = time.monotonic() + seconds
        # What is found in the page has no value here.
        look = f"(async () => {{ const found = await ({expression});"
        look += " return found instanceof Node || found || null; })()"
        while not (found := self.evaluate(look)):
            if time.monotonic() > give_up_at:
                raise PageError(f"still not so: {expression}; problems: {self.problems}")
            self._tools.take_events(_POLL_SECONDS)
        return found

    def click(self, selector: str) -> None:
        """Press the mouse in the middle of the first element that fits."""
        place = self.evaluate(
            f"(() => {{ const e = document.querySelector({selector!r}); if (!e) return null;"
            " e.scrollIntoView({block: 'nearest', behavior: 'instant'});"
            " const b = e.getBoundingClientRect();"
            " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        if place is None:
            raise PageError(f"nothing fits {selector}")
        for kind in ("mousePressed", "mouseReleased"):
            self._call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=place[0],
                y=place[1],
                button="left",
                clickCount=1,
            )

    def type(self, text: str) -> None:
        """Type a text into what has the focus."""
        self._call("Input.insertText", text=text)

    def press(self, key: str, *modifiers: str) -> None:
        """Press and release a key, such as `Enter` or `a`, with `Shift`, `Control` and so on."""
        code, text = _KEYS.get(key, (ord(key[0].upper()), key if len(key) == 1 else ""))
        held = sum(_MODIFIERS[each] for each in modifiers)
        fields = {"key": key, "windowsVirtualKeyCode": code, "modifiers": held}
        typed = {} if held & ~_MODIFIERS["Shift"] or not text else {"text": text}
        kind = "keyDown" if typed else "rawKeyDown"
        self._call("Input.dispatchKeyEvent", type=kind, **fields, **typed)
        self._call("Input.dispatchKeyEvent", type="keyUp", **fields)

    def resize(self, width: int, height: int, *, scale: float = 1.0) -> None:
        """Give the page another size, in CSS pixels; pictures have `scale` times as many."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=False,
        )

    def prefer(self, scheme: str = "light", *, reduced_motion: bool = True) -> None:
        """Say what the visitor prefers: `light` or `dark`, and whether things may move."""
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce" if reduced_motion else ""},
        ]
        self._call("Emulation.setEmulatedMedia", features=features)

    def go_offline(self, offline: bool = True) -> None:
        """Take the network away from the page, or give it back."""
        limits = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        self._call("Network.emulateNetworkConditions", offline=offline, **limits)

    def screenshot(self) -> bytes:
        """Return a picture of what is seen, as PNG."""
        return base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])

    def accessible(self) -> list[tuple[str, str]]:
        """Return role and name of everything that a screen reader finds, in order."""
        nodes = self._call("Accessibility.getFullAXTree")["nodes"]
        return [
            (str(node["role"]["value"]), str(node.get("name", {}).get("value", "")).strip())
            for node in nodes
            if not node.get("ignored") and node["role"]["value"] != "InlineTextBox"
        ]

    def close(self) -> None:
        """Close the page, and forget its visitor."""
        self._tools.call("Target.disposeBrowserContext", browserContextId=self._context)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._tools.call(method, self._session, **parameters)

    def _happened(self, event: str, parameters: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loads += 1
        elif event == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif event == "Network.webSocketCreated":
            self.requests.append(parameters["url"])
        elif event == "Runtime.exceptionThrown":
            self.problems.append(_exception(parameters["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "assert"):
            self.problems.append(" ".join(map(_shown, parameters["args"])))
        elif event == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            entry = parameters["entry"]
            self.problems.append(f"{entry['text']} {entry.get('url', '')}".strip())


class Browser:
    """A Chromium that runs."""

    def __init__(self, tools: DevTools) -> None:
        self._tools = tools

    def open(self, url: str | None = None, *, width: int = 1280, height: int = 800) -> Page:
        """Return a page of a new visitor, at a URL if one is given."""
        context = self._tools.call("Target.createBrowserContext")["browserContextId"]
        page = Page(self._tools, context, width=width, height=height)
        if url is not None:
            page.goto(url)
        return page

    @contextmanager
    def page(
        self, url: str | None = None, *, width: int = 1280, height: int = 800
    ) -> Iterator[Page]:
        """Open a page around the body."""
        page = self.open(width=width, height=height)
        try:
            if url is not None:
                page.goto(url)
            yield page
        finally:
            page.close()


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Run a browser around the body. Skips the test where none is installed."""
    program = find_chromium()
    if program is None:
        pytest.skip("needs Chromium: Debian's package chromium, or CHROMIUM=/path/to/it")
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        tools = DevTools(program, Path(profile))
        try:
            yield Browser(tools)
        finally:
            tools.close()


def _exception(details: dict[str, Any]) -> str:
    thrown = details.get("exception", {})
    return str(thrown.get("description") or thrown.get("value") or details.get("text"))


def _shown(value: dict[str, Any]) -> str:
    return str(value.get("value", value.get("description", value.get("type"))))

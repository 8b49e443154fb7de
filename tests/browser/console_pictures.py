"""Take the pictures of the console: `python -m tests.browser.console_pictures [SECONDS]`.

A real cluster of three servers works for some seconds, one of its servers is killed and comes back;
then the page is looked at. Writes docs/pictures/console-light.png and console-dark.png.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from holdfast.client import Client, connect
from tests.browser.browser import Browser, Page, running_browser
from tests.browser.palette import with_palette
from tests.support.holdfast_up import RunningUp, running_up

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "docs" / "pictures"
_SECONDS: Final = 150.0
_PROJECTS: Final = ("atlas", "beacon", "cedar", "delta", "ember", "fjord", "glade", "harbor")


def main() -> None:
    """Take them."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else _SECONDS
    with ExitStack() as stack:
        browser = stack.enter_context(running_browser())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "bucket").mkdir()
        options = ("--servers", "3", "--bucket", f"file://{folder}/bucket")
        cluster = stack.enter_context(running_up(folder / "up", *options, http=True))
        stack.enter_context(_working(cluster))
        url = str(cluster.welcome["http"])
        # It makes the gateway watch, so that the charts have a past.
        first = browser.open(f"{url}/", width=1280, height=900)
        first.wait_for("document.querySelectorAll('.chart').length", seconds=60)
        _wait(first, seconds * 0.55)
        os.kill(cluster.pids()["s2"] or 0, signal.SIGKILL)
        _wait(first, seconds * 0.45)
        FOLDER.mkdir(exist_ok=True)
        _overview(browser, url)
        _editing(browser, url)


def _overview(browser: Browser, url: str) -> None:
    with browser.page(f"{url}/", width=1280, height=900) as page:
        page.prefer("light")
        page.wait_for("document.querySelectorAll('.log li').length")
        _wait(page, 5)
        height = page.evaluate("document.body.scrollHeight")
        page.resize(1280, height)
        _wait(page, 3)
        _write("console-light.png", page)


def _editing(browser: Browser, url: str) -> None:
    with browser.page(f"{url}/#/stores/kv/settings.ada", width=1280, height=560) as page:
        page.prefer("dark")
        page.wait_for("document.querySelectorAll('.two .row').length > 3")
        page.evaluate(
            "[...document.querySelectorAll('.two .row')].find((e) => e.textContent === 'editor')"
            ".click()"
        )
        page.wait_for("document.querySelector('#key-value').value.length > 9")
        _wait(page, 3)
        _write("console-dark.png", page)


def _write(name: str, page: Page) -> None:
    assert not page.problems, page.problems
    (FOLDER / name).write_bytes(with_palette(page.screenshot()))
    print(f"{name}: {(FOLDER / name).stat().st_size} bytes")


def _wait(page: Page, seconds: float) -> None:
    """Let time pass."""
    give_up_at = time.monotonic() + seconds
    while time.monotonic() < give_up_at:
        page.evaluate("new Promise((resolve) => setTimeout(resolve, 200))")


@contextmanager
def _working(cluster: RunningUp) -> Iterator[None]:
    """Use the cluster in a thread."""
    ending = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_work(cluster.nats, ending)))
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


async def _work(nats: str, ending: threading.Event) -> None:
    async with connect(nats) as client:
        await _fill(client)
        async with asyncio.TaskGroup() as tasks:
            for name in _PROJECTS:
                tasks.create_task(_write_patches(client, name, ending))
            tasks.create_task(_resize_images(client, ending))


async def _fill(client: Client) -> None:
    settings = client.kv("settings.ada")
    await settings.set("theme", b"dark")
    await settings.set("editor", b'{\n  "font": "Inter",\n  "size": 13,\n  "wrap": true\n}\n')
    await settings.set("language", b"en-GB")
    await settings.set("timezone", b"Europe/Berlin")
    await settings.set("avatar", bytes(range(256)))
    for name in _PROJECTS:
        await client.kv(f"project.{name}.presence").set("ada", b"here")
        await client.stream(f"project.{name}.chat").append(b"good morning", headers={"user": "ada"})


async def _write_patches(client: Client, name: str, ending: threading.Event) -> None:
    patches, jobs = client.stream(f"project.{name}.patches"), client.stream("jobs.thumbnails")
    while not ending.is_set():
        await patches.append_many([b"x" * 100] * random.randint(1, 20))
        if random.random() < 0.1:
            await jobs.append(b'{"image": "a.png"}')
        wave = 1.4 + math.sin(time.monotonic() / 9)
        await asyncio.sleep(random.random() * 0.15 * wave)


async def _resize_images(client: Client, ending: threading.Event) -> None:
    consumer = client.stream("jobs.thumbnails").consumer("resize")
    while not ending.is_set():
        for delivery in await consumer.fetch(4, max_wait_seconds=0.5):
            await delivery.ack()
        await asyncio.sleep(random.random())


if __name__ == "__main__":
    main()

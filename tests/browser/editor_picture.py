"""Take the picture of the example editor: `python -m tests.browser.editor_picture`.

Three people write in a real cluster; two of their pages are shown, one light and one dark. Writes
docs/pictures/editor.png.
"""

from __future__ import annotations

import base64
import os
import signal
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.browser.browser import Browser, Page, running_browser
from tests.browser.static_files import served
from tests.support.holdfast_up import running_up

ROOT: Final = Path(__file__).parents[2]
PICTURE: Final = ROOT / "docs" / "pictures" / "editor.png"
WIDTH, HEIGHT, MARGIN = 760, 520, 24
_NOTES: Final = """\
Release 2.4, Thursday

1. Code freeze at noon, tag at two.
2. Grace drains p2 and upgrades it.
   Nobody should notice.
3. Radia restores the last backup
   and compares the counts.

Still open
- Who is on call this weekend?
"""
_FRAME: Final = """<!doctype html><style>
body {{ display: flex; gap: {margin}px; margin: 0; padding: {margin}px; background: #cfd6df; }}
img {{ width: {width}px; height: {height}px; border-radius: 10px; outline: 1px solid #0003; }}
</style>{images}"""
_CARETS: Final = "[...document.querySelectorAll('#carets span')]"
_TEXT: Final = "document.getElementById('text')"


def main() -> None:
    """Take it."""
    with ExitStack() as stack:
        browser = stack.enter_context(running_browser())
        site = stack.enter_context(served(ROOT / "examples" / "editor"))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(running_up(folder / "up", "--origin", site, http=True))
        url = f"{site}/?page=release&gateway={cluster.welcome['http']}"
        ada, grace, radia = (_entered(browser, url, name) for name in ("Ada", "Grace", "Radia"))
        grace.prefer("dark")
        ada.type(_NOTES)
        for page in (grace, radia):
            page.wait_for(f"{_TEXT}.value.length === {len(_NOTES)}")
        _say(radia, "The backup is back, all counts match.", 1)
        row = cluster.json("stores", "editor.release.edits")["stores"][0]
        os.kill(cluster.pids()[row["server"]] or 0, signal.SIGKILL)
        _say(ada, f"I just killed the server of this text, {row['server']}.", 2)
        _place(grace, "Nobody should notice")
        grace.type(", even if killed")
        _place(radia, "compares the counts")
        radia.type(": 1,204,881")
        _place(ada, "on call this weekend?")
        ada.type(" I am.")
        _say(grace, "Was there something? My words are all here.", 3)
        for page in (ada, grace):
            page.wait_for(f"{_TEXT}.value.includes('I am.') && {_TEXT}.value.includes('1,204')")
            # Where others are now, and not where they began.
            page.wait_for("document.querySelectorAll('#carets span').length === 2")
            page.wait_for(f"{_CARETS}.every((caret) => caret.previousSibling.length)")
            page.wait_for("document.querySelectorAll('#chat article').length === 3")
            page.wait_for("document.getElementById('state').textContent === 'All changes saved'")
        PICTURE.parent.mkdir(exist_ok=True)
        PICTURE.write_bytes(_framed(browser, [page.screenshot() for page in (ada, grace)]))
        print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size} bytes")


def _entered(browser: Browser, url: str, name: str) -> Page:
    page = browser.open(url, width=WIDTH, height=HEIGHT)
    page.wait_for(f"!{_TEXT}.disabled")
    page.click("#name")
    page.press("a", "Control")
    page.type(name)
    page.click("#text")
    return page


def _say(page: Page, words: str, count: int) -> None:
    page.click("#draft")
    page.type(words)
    page.press("Enter")
    page.wait_for(f"document.querySelectorAll('#chat article').length === {count}")
    page.evaluate(f"{_TEXT}.focus()")


def _place(page: Page, words: str) -> None:
    """Put the caret behind these words."""
    found = f"{_TEXT}.value.indexOf({words!r}) + {len(words)}"
    page.evaluate(f"{_TEXT}.focus(), {_TEXT}.setSelectionRange({found}, {found})")


def _framed(browser: Browser, pictures: list[bytes]) -> bytes:
    images = "".join(
        f"<img src='data:image/png;base64,{base64.b64encode(each).decode()}'>" for each in pictures
    )
    frame = _FRAME.format(margin=MARGIN, width=WIDTH, height=HEIGHT, images=images)
    with browser.page(width=2 * WIDTH + 3 * MARGIN, height=HEIGHT + 2 * MARGIN) as page:
        page.evaluate(f"document.write({frame!r}), document.close()")
        page.wait_for("[...document.images].every((image) => image.complete)")
        return page.screenshot()


if __name__ == "__main__":
    main()

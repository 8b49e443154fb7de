"""Keys of a terminal, one by one, without waiting for a line."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

#: Of one read: a key, or a sequence such as that of an arrow.
_READ_BYTES: Final = 64


@contextmanager
def keys(pressed: Callable[[str], None]) -> Iterator[None]:
    """Call `pressed` with each key while the body runs in the event loop. Without a terminal as
    stdin there are none. Signals such as Ctrl-C work as ever."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    loop = asyncio.get_running_loop()

    def read() -> None:
        found = os.read(descriptor, _READ_BYTES).decode(errors="replace")
        if not found:
            # The terminal is gone.
            loop.remove_reader(descriptor)
            pressed("q")
        elif found[0] == "\x1b" and len(found) > 1:
            # An arrow, or another key that has no character.
            return
        for key in found:
            pressed(key)

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)

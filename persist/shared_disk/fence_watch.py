"""The fence watch: tells a server at once that something in its incarnation's folder changed.

A server reads its fence after each sync and with each heartbeat. Without a watch, an idle server
would learn only then that it is fenced. The watch is a hint, and nothing depends on it: it may come
late, twice, without a reason, or never. It reports only changes. Reading the fence is not one, so
reacting to a hint causes no further hint. The log is in a folder below, and is not watched.

The kernel watches a local file system. On a network file system it does not notice what other hosts
do, so there, and when the system has no watches left, the folder is polled twice a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from watchdog.events import (
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver
from watchdog.observers.polling import PollingObserver

from holdfast.shared_fs.disk.file_system import mount_of

logger = logging.getLogger("holdfast.persist")

POLL_SECONDS: Final = 0.5
#: How long the threads of a watch may take to end. Nobody waits for anything that they hold.
_JOIN_SECONDS: Final = 1.0

#: A context manager that watches a folder and calls back in the thread of the event loop.
Watch = Callable[[Path, Callable[[], None]], AbstractContextManager[None]]


@contextlib.contextmanager
def watch_folder(
    folder: Path, on_change: Callable[[], None], *, poll: bool | None = None
) -> Iterator[None]:
    """Call `on_change` in the running loop after each change in `folder`, until the body ends.

    If `poll` is None, the kind of file system decides.
    """
    handler = _Handler(asyncio.get_running_loop(), on_change)
    polls = not mount_of(folder).local if poll is None else poll
    observer = _start(folder, handler, poll=polls)
    try:
        yield
    finally:
        handler.enabled = False
        observer.stop()
        observer.join(_JOIN_SECONDS)


@contextlib.contextmanager
def no_watch(folder: Path, on_change: Callable[[], None]) -> Iterator[None]:
    """Watch nothing: for folders that the kernel does not know, such as a simulation's."""
    yield


def _start(folder: Path, handler: FileSystemEventHandler, *, poll: bool) -> BaseObserver:
    if not poll:
        try:
            return _started(Observer(), folder, handler)
        except OSError as error:
            # Usually fs.inotify.max_user_instances, which all processes of a user share.
            logger.warning("fence.watch_polls folder=%s reason=%s", folder, error)
    return _started(PollingObserver(timeout=POLL_SECONDS), folder, handler)


def _started(observer: BaseObserver, folder: Path, handler: FileSystemEventHandler) -> BaseObserver:
    # Not opening and closing: the server itself opens its fence after each sync.
    changes: list[type[FileSystemEvent]] = [
        FileCreatedEvent,
        FileModifiedEvent,
        FileMovedEvent,
        FileDeletedEvent,
    ]
    observer.schedule(handler, str(folder), event_filter=changes)
    observer.start()
    return observer


class _Handler(FileSystemEventHandler):
    """Carries events from the observer's thread to the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_change: Callable[[], None]) -> None:
        self._loop = loop
        self._on_change = on_change
        self.enabled = True

    def on_any_event(self, event: FileSystemEvent) -> None:
        """Runs in the observer's thread."""
        # The loop may be closed by now.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        if self.enabled:
            self._on_change()

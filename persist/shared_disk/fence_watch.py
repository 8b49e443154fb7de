"""The fence watch: tells a server that something in its incarnation's folder changed, at once.

A server reads its fence after each sync and with each heartbeat; one that is idle would otherwise
hear of a fence only then. This is a hint and nothing rests on it: it may come late, twice, without
a reason, or never. Only changes are told: a read of the fence is none, so looking at it because of
a hint causes no further hint. The log, in a folder below, is not watched.

A local file system is watched through the kernel. The kernel does not hear what other hosts do on a
network file system, so there the folder is looked at twice a second; also when the system has no
watch to give.
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
#: How long the threads of a watch may take to end; they hold nothing that anybody waits for.
_JOIN_SECONDS: Final = 1.0

#: Watches a folder for as long as its body runs, calling back in the event loop's thread.
Watch = Callable[[Path, Callable[[], None]], AbstractContextManager[None]]


@contextlib.contextmanager
def watch_folder(
    folder: Path, on_change: Callable[[], None], *, poll: bool | None = None
) -> Iterator[None]:
    """Call `on_change` in the running loop after each change in `folder`, while the body runs.

    `poll` None: as the file system asks for.
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
    """Watch nothing: for folders that no kernel knows, as those of a simulation."""
    yield


def _start(folder: Path, handler: FileSystemEventHandler, *, poll: bool) -> BaseObserver:
    if not poll:
        try:
            return _started(Observer(), folder, handler)
        except OSError as error:
            # Most often fs.inotify.max_user_instances, which all processes of a user share.
            logger.warning("fence.watch_polls folder=%s reason=%s", folder, error)
    return _started(PollingObserver(timeout=POLL_SECONDS), folder, handler)


def _started(observer: BaseObserver, folder: Path, handler: FileSystemEventHandler) -> BaseObserver:
    # Not what was opened or closed: the server itself opens its fence after each sync.
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
        """In the observer's thread."""
        # A loop that is closed by now takes no more calls.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        if self.enabled:
            self._on_change()

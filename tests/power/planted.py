"""Bugs planted on purpose, to show that cutting the power finds them.

Each is a context manager that leaves out one safeguard of the shipped code while it is entered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from holdfast.persist.shared_disk.new_files import NewFiles
from holdfast.persist.shared_disk.opening import StoreOpener
from holdfast.persist.write_path.checkpointing import Checkpointer
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.commit_log import CommitLog
from holdfast.shared_fs.store_file.store_file import StoreFile
from holdfast.shared_fs.store_file.store_image import NewStore
from tests.simulation.planted import (
    ack_before_the_sync,
    forget_outcomes_in_a_takeover,
    retire_the_log_without_a_sync,
)
from tests.simulation.simulated_disk import HostDisk


@contextlib.contextmanager
def never_sync_the_log() -> Iterator[None]:
    """The log's sync reports success and does nothing."""
    with patch.object(CommitLog, "prepare_sync", lambda log: lambda: None):
        yield


@contextlib.contextmanager
def never_sync_the_names_of_segments() -> Iterator[None]:
    """A segment's content is synced, and its name in the log's folder is not."""
    sync_directory = HostDisk.sync_directory

    def sync_other_directories(disk: HostDisk, path: Path) -> None:
        if path.name != "log":
            sync_directory(disk, path)

    with patch.object(HostDisk, "sync_directory", sync_other_directories):
        yield


@contextlib.contextmanager
def never_sync_files_written_whole() -> Iterator[None]:
    """A new store's file counts as durable once it is written."""
    new = StoreFile.new

    def new_unsynced(path: Path, image: NewStore, *, disk: HostDisk) -> StoreFile:
        with (
            patch.object(HostDisk, "sync_file", lambda disk, path, inode: None),
            patch.object(HostDisk, "sync_directory", lambda disk, path: None),
        ):
            return new(path, image, disk=disk)

    with patch.object(StoreFile, "new", new_unsynced):
        yield


@contextlib.contextmanager
def retire_without_a_checkpoint() -> Iterator[None]:
    """Segments go as soon as they are full, whatever the files hold."""

    async def run_pass(checkpointer: Checkpointer, now: float) -> None:
        log = checkpointer._log
        while log.oldest_segment < log.segment:
            log.retire(log.oldest_segment)

    with patch.object(Checkpointer, "run_pass", run_pass):
        yield


@contextlib.contextmanager
def take_over_before_the_log_is_applied() -> Iterator[None]:
    """The new epoch is in the file before the changes of the old one are."""
    create = NewFiles.create

    def create_and_take(files: NewFiles, store: StoreId, epoch: int, *owner: Any) -> StoreFile:
        file = create(files, store, epoch, *owner)
        file.take(epoch, files._life.server, files._life.id)
        return file

    with patch.object(NewFiles, "create", create_and_take):
        yield


@contextlib.contextmanager
def answer_before_a_taken_over_file_is_durable() -> Iterator[None]:
    """A takeover applies the log and leaves the syncs to a later checkpoint."""
    with patch.object(StoreOpener, "_make_durable", lambda opener, file: None):
        yield


#: Each bug, and a scenario in which it does harm.
PLANTED: Final[dict[str, tuple[Callable[[], AbstractContextManager[None]], str]]] = {
    bug.__name__: (bug, scenario)
    for bug, scenario in (
        (never_sync_the_log, "write_to_a_new_store"),
        (ack_before_the_sync, "write_to_a_new_store"),
        (never_sync_the_names_of_segments, "retire_segments"),
        (never_sync_files_written_whole, "write_new_files_whole"),
        (retire_without_a_checkpoint, "retire_segments"),
        (retire_the_log_without_a_sync, "retire_segments"),
        (take_over_before_the_log_is_applied, "take_over"),
        (answer_before_a_taken_over_file_is_durable, "reap_a_dead_log"),
        (forget_outcomes_in_a_takeover, "take_over"),
    )
}

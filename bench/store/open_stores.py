"""Measures the memory of open stores: `python -m holdfast.bench.store.open_stores FOLDER COUNT`.

It is a process of its own, because a process that has done other work would reuse its free memory
for new stores. It opens COUNT store files of FOLDER as a server does, with a check of each, reads
and writes each, lets those rest that were used longest ago, and prints one JSON object."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.bench.processes import usage_of
from holdfast.bench.store.engine_files import TIME_MS, open_made_files
from holdfast.persist.store.store import Store
from holdfast.protocol.changes import CHANGE_SET_MESSAGE
from holdfast.protocol.limits import MAX_AWAKE_FILES
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.store_file.sqlite_connection import configure_process
from holdfast.shared_fs.store_file.store_file import StoreFile


def main(arguments: Sequence[str]) -> int:
    folder, count = Path(arguments[0]), int(arguments[1])
    configure_process()
    # The first one loads what all share: the extension's code, the statements' parser.
    files = open_made_files(folder, count)
    stores = [_used(next(files))]
    gc.collect()
    before_bytes = usage_of(os.getpid()).rss_bytes
    disk = Disk()
    for file in files:
        stores.append(_used(file))
        if len(stores) > MAX_AWAKE_FILES:
            longest_unused = stores[-1 - MAX_AWAKE_FILES].file
            assert longest_unused is not None
            longest_unused.rest(disk)
    gc.collect()
    taken_bytes = usage_of(os.getpid()).rss_bytes - before_bytes
    for store in stores:
        assert store.file is not None
        store.file.abandon()
    more = len(stores) - 1
    print(json.dumps({"stores": len(stores), "bytes_per_store": taken_bytes / more}))
    return 0


def _used(file: StoreFile) -> Store:
    """Return an open store that was opened, written and read as by a user of a server."""
    file.quick_check()
    file.take(1, "s1", "bench")
    store = Store(file.store, 1, file, lambda _: file)
    store.begin()
    store.time = TIME_MS
    seq = store.last_seq + 1
    store.set_message(seq, 128, [CHANGE_SET_MESSAGE, seq, bytes(128)])
    store.finish_tick(1, 1)
    store.materialise(1)
    rows = list(file.messages(1, None, seq))
    assert len(rows) == seq, f"{len(rows)} rows of {seq}"
    return store


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

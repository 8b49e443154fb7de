"""A persist server that reads the archive for others and is odd: with DIE_AT in its environment it
kills itself within that read, counted from 1; with LIES it answers with other values than it has
read."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from holdfast.persist import __main__ as server
from holdfast.persist.archive_reading import archive_server
from holdfast.persist.archive_reading.asks import ArchiveAsk
from holdfast.shared_fs.archive.archive_table import Archive
from holdfast.shared_fs.store_file.archived_blocks import Bodies


def main(arguments: Sequence[str]) -> int:
    """Run it; return its exit code."""
    answer_of, bodies = archive_server.answer_of, Archive.bodies
    left, lies = int(os.environ.get("DIE_AT", "0")), bool(os.environ.get("LIES"))

    def bodies_or_death(*given: Any) -> Bodies:
        nonlocal left
        found = bodies(*given)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    def answer(ask: ArchiveAsk, found: Bodies, limit_bytes: int) -> list[tuple[bytes, Any]]:
        rows = answer_of(ask, found, limit_bytes)
        return [(value[::-1], headers) for value, headers in rows] if lies else rows

    with (
        patch.object(archive_server, "answer_of", answer),
        patch.object(Archive, "bodies", bodies_or_death),
    ):
        return server.main(arguments)

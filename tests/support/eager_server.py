"""A persist server that looks for what may be archived all the time. With KILL_AT in its
environment it kills itself within the transaction of that block, counted from 1."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from holdfast.persist import __main__ as server
from holdfast.persist.tier.tier_policy import TierPolicy
from holdfast.shared_fs.store_file import archived_blocks


def main(arguments: Sequence[str]) -> int:
    """Run it; return its exit code."""
    archive = archived_blocks.ArchivedBlocks.archive
    left = int(os.environ.get("KILL_AT", "0"))

    def archive_and_die(*given: Any, **named: Any) -> None:
        nonlocal left
        archive(*given, **named)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    eager = functools.partial(TierPolicy, archive_look_seconds=0.05)
    with (
        patch.object(server, "TierPolicy", eager),
        patch.object(archived_blocks, "ARCHIVE_BLOCK_ROWS", 16),
        patch.object(archived_blocks.ArchivedBlocks, "archive", archive_and_die),
    ):
        return server.main(arguments)

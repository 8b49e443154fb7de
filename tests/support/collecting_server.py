"""A persist server that claims cold work and collects garbage all the time."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from unittest.mock import patch

from holdfast.persist import __main__ as server
from holdfast.persist.shared_disk import shared_disk_mode
from holdfast.persist.tier import claims, garbage
from holdfast.shared_fs.snapshots.collecting import Collector


def main(arguments: Sequence[str]) -> int:
    """Run it; return its exit code."""
    with (
        patch.object(claims, "CLAIM_SECONDS", 0.1),
        patch.object(garbage, "COLLECT_SECONDS", 0.2),
        patch.object(shared_disk_mode, "_REAP_SECONDS", 0.1),
        patch.object(garbage, "Collector", functools.partial(Collector, min_age_seconds=0.2)),
    ):
        return server.main(arguments)

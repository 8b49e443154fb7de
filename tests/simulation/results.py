"""What a run of the simulation came to."""

from __future__ import annotations

from typing import NamedTuple


class Result(NamedTuple):
    """What a run came to. `trace` is the same for the same seed."""

    seed: int
    violations: list[str]
    trace: list[str]
    checksum: int
    acknowledged: int
    #: How often cold work passed from one server to another, and was done there.
    work_changes: int = 0

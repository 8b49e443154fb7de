"""The options of every benchmark: where to put files, how often to measure, which
programs to run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from holdfast.shared_fs.disk.file_system import mount_of

DEFAULT_ROUNDS: Final = 5
#: File systems whose syncs cost nothing, so measurements there mean nothing.
_MEMORY_FILE_SYSTEMS: Final = frozenset(["tmpfs", "ramfs", "devtmpfs"])


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The options of a benchmark. `say` is called with lines about its progress."""

    nats_server: Path
    #: Temporary folders are made here; it should be on a real disk.
    directory: Path
    rounds: int = DEFAULT_ROUNDS
    #: A run of seconds, to see that everything works; its numbers mean nothing.
    quick: bool = False
    #: The names of the works to do, or empty for all.
    only: tuple[str, ...] = ()
    #: The folder for profiles of holdfast's servers. None runs them without a profiler.
    profile: Path | None = None
    #: Returns a command that runs the given one and ends with this process.
    tethered: Callable[[Sequence[str]], list[str]] = field(default=list)
    say: Callable[[str], None] = field(default=lambda line: None)

    def wants(self, work: str) -> bool:
        return not self.only or work in self.only

    def to_json(self) -> dict[str, Any]:
        return {
            "rounds": self.rounds,
            "quick": self.quick,
            "only": list(self.only),
            "profiled": self.profile is not None,
        }


def default_directory() -> Path:
    """Return a folder for temporary files that is not in memory, if there is one."""
    candidates = [Path(tempfile.gettempdir()), Path("/var/tmp"), Path.cwd()]
    for candidate in candidates:
        if candidate.is_dir() and mount_of(candidate).type not in _MEMORY_FILE_SYSTEMS:
            return candidate
    return candidates[0]

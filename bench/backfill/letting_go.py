"""Files leave the memory of this host: `python -m holdfast.bench.backfill.letting_go FOLDER`.

A process of its own: whoever opens and closes a file drops the locks that its process has on it.
Linux only. What is not on the disk yet is written first.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def let_go(folder: Path) -> None:
    """Let all files below a folder leave memory."""
    for path in folder.rglob("*"):
        if not path.is_file():
            continue
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


if __name__ == "__main__":
    let_go(Path(sys.argv[1]))

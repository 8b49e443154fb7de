"""A small git repository for the demo: some hundred versions, odd names, binary files,
deletions."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}
FILE_COUNT = 30
COMMIT_COUNT = 20


def make_repository(folder: Path) -> Path:
    """Make it in a folder that does not exist, and return that."""
    folder.mkdir()
    stream = bytearray()
    for number in range(COMMIT_COUNT):
        stream += b"commit refs/heads/main\nmark :%d\n" % (number + 1)
        stream += b"committer Ada <ada@example.org> %d +0000\n" % (1_700_000_000 + number)
        stream += b"data 6\nchange\n"
        for file in range(FILE_COUNT):
            name = f'"dir/fi le \\303\\274 {file}.bin"'
            if (file + number) % 7 == 3 and number:
                stream += f"D {name}\n".encode()
            else:
                content = bytes([number, file, 0, 10, 255]) * (1 + file * number)
                stream += f"M 100644 inline {name}\ndata {len(content)}\n".encode() + content
                stream += b"\n"
    stream += b"commit refs/heads/main\ncommitter Ada <ada@example.org> 1700001000 +0000\n"
    stream += b"data 5\nlarge\n"
    stream += b"M 100644 inline too-large\ndata 1000001\n" + b"x" * 1_000_001 + b"\n"
    for arguments in (["init", "--quiet", "--initial-branch=main"], ["fast-import", "--quiet"]):
        subprocess.run(
            ["git", "-C", str(folder), *arguments],
            input=bytes(stream) if "fast-import" in arguments else b"",
            env=ENVIRONMENT,
            check=True,
            capture_output=True,
            timeout=60,
        )
    return folder

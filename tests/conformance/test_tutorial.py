"""The tutorial is followed to the letter: its files, its terminals, its cluster, and what they
print."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from holdfast.cli.cluster.ports import free_port
from tests.conformance.transcripts import replay

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"


def test_the_tutorial_works_and_prints_what_is_shown(tmp_path: Path) -> None:
    port = free_port()
    nats = f"nats://127.0.0.1:{port}"
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONUNBUFFERED": "1",
        "HOLDFAST_NATS": nats,
        "HOLDFAST_UP_PORT": str(port),
    }
    made = replay(TUTORIAL, tmp_path, environment, nats)
    assert len(made) == TUTORIAL.read_text().count("```python\n"), "a file was left out"

"""Profiles of the processes that a benchmark measures."""

from __future__ import annotations

import pstats
import sys
from pathlib import Path

import pytest

from holdfast.bench import profiled


def test_the_command_line_is_profiled_as_any_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # On few cores a benchmark starts the persist server by it, to be the gateway as well.
    out = tmp_path / "profiles" / "s1"
    with pytest.raises(SystemExit) as ended:
        profiled.main([str(out), "holdfast.cli", "--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("holdfast")
    assert pstats.Stats(str(out.with_name("s1.prof"))).total_calls > 0  # type: ignore[attr-defined]
    assert "--version" not in sys.argv
    assert "function calls" in out.with_name("s1.txt").read_text()

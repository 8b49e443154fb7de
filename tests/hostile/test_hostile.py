"""A bounded attack, and a run in which things go wrong that must be noticed.

A usual run leaves the attack to `make hostile`, which CI runs by itself, with tokens and without.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.effort import tries

SEED = 15
RUNS = tries([], [], [["--tokens"], []])
MINUTES = 1.0


def attack(data: Path, *arguments: str) -> tuple[int, str]:
    """Run the command; return its exit code and its report."""
    process = subprocess.run(
        [sys.executable, "-m", "tests.hostile", "--data", str(data), *arguments],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(process.stdout)
    return process.returncode, process.stdout


@pytest.mark.timeout(60 * MINUTES + 400)
@pytest.mark.parametrize("options", RUNS)
def test_a_hostile_tenant_neither_stops_nor_reads_nor_loses_another_one(
    tmp_path: Path, options: list[str]
) -> None:
    """With tokens, holders of every kind attack too: they change and see what they may."""
    exit_code, report = attack(
        tmp_path / "data", "--minutes", str(MINUTES), "--seed", str(SEED), *options
    )
    assert exit_code == 0, report


@pytest.mark.timeout(400)
def test_what_must_not_happen_is_noticed(tmp_path: Path) -> None:
    exit_code, report = attack(
        tmp_path / "data", "--minutes", "0.15", "--seed", str(SEED), "--tokens", "--planted"
    )
    assert exit_code == 1
    assert "WRONG: a process ended: s1 was restarted" in report
    assert "WRONG: a server began another life: s1" in report
    assert "WRONG: came unasked: b'_INBOX.victim.canary.1': b'astray'" in report
    assert "WRONG: readable by a stranger: b'_INBOX.evil." in report
    # tokens/planted.py: no right needed to read, to append and to list, and a wildcard too many.
    seen = "WRONG: seen without a right:"
    assert re.search(f"{seen} [a-z-]+ sees the value of [a-z-]+: b'_INBOX", report)
    assert re.search(f"{seen} [a-z-]+ sees the name of private: b'_INBOX", report)
    assert f"{seen} read hears what is not its own: b'hf.office.chg.s." in report
    assert re.search("WRONG: changed without a right: (stream|kv) (private|read)", report)

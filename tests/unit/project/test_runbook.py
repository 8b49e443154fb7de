"""docs/runbook.md has every code of `holdfast doctor`, and names only errors and events there
are."""

from __future__ import annotations

import re

from holdfast.cli.doctor.checks import CHECKS
from tests.support.documents import read

RUNBOOK, OPERATIONS = read("runbook.md"), read("operations.md")


def test_every_code_of_the_doctor_has_a_row() -> None:
    listed = re.findall(r"^\| (HF-\d+) \|", RUNBOOK, re.MULTILINE)
    assert listed == sorted(check.code for check in CHECKS)


def test_every_event_that_is_named_is_one() -> None:
    # test_docs.py compares the tables of operations.md with the code.
    events = set(re.findall(r"^\| `(\w+\.\w+)` \|", OPERATIONS, re.MULTILINE))
    families = "|".join({event.partition(".")[0] for event in events})
    named = set(re.findall(rf"`((?:{families})\.[a-z_]+)`", RUNBOOK)) - {"state.db"}
    assert named
    assert named - events == set()


def test_every_error_that_needs_an_operator_has_a_section() -> None:
    errors = re.findall(r"^\| `(\w+)` \| .*runbook\.md#", OPERATIONS, re.MULTILINE)
    assert len(errors) > 5
    assert [code for code in errors if f"`{code}`" not in RUNBOOK] == []

"""docs/performance.md lists the works, the targets and the JSON that the benchmarks have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from holdfast.bench.compare.compare_jetstream import HOLDFAST, HOLDFAST_APPLIED, PLANS, table
from holdfast.bench.harness import FORMAT, Goal, Measurement, Report, Work

DOCUMENT = (Path(__file__).parents[3] / "docs" / "performance.md").read_text()


def rows(header: str) -> list[list[str]]:
    """The cells of the table whose first line begins with `header`."""
    [block] = re.findall(
        rf"^\| {re.escape(header)} .*\n\|[-|]+\n((?:\|.*\|\n)+)", DOCUMENT, re.MULTILINE
    )
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]


def test_every_work_is_listed_in_its_order() -> None:
    assert [row[0] for row in rows("name |")] == [f"`{plan.name}`" for plan in PLANS]


def test_the_results_have_a_row_for_each_work_with_its_target() -> None:
    works = []
    for plan in PLANS:
        figures = {"per_second": 1.0, "p50_ms": 1.0, "p99_ms": 1.0}
        sides = {side: Measurement((figures,)) for side in plan.sides}
        works.append(Work(plan.name, plan.title, sides, plan.targets))
    shown = table(Report("compare_jetstream", {}, {}, tuple(works)))
    documented = rows("work | holdfast |")
    target = shown.columns.index("target")
    assert [row[target] for row in documented] == [
        row[target].replace("20.00 ms", "20 ms") for row in shown.rows
    ]
    names = [
        f"`{plan.name}`" + (", `applied`" if side == HOLDFAST_APPLIED else "")
        for plan in PLANS
        for side in plan.sides
        if side in (HOLDFAST, HOLDFAST_APPLIED)
    ]
    assert [row[0] for row in documented] == names


def shape(value: Any) -> Any:
    """The keys of objects, all the way down; of a list, those of its first element."""
    if isinstance(value, dict):
        return {key: shape(one) for key, one in value.items()}
    return [shape(one) for one in value[:1]] if isinstance(value, list) else None


def test_the_report_has_the_documented_shape() -> None:
    [example] = re.findall(r"^```json\n(.*)\n```$", DOCUMENT, re.MULTILINE)
    documented = json.loads(example)
    [work] = documented["works"]
    side = Measurement(({"per_second": 3.0},), "publish_async", work["sides"]["jetstream"]["tried"])
    target = Goal("holdfast", "per_second", 6.0, than="jetstream")
    report = Report(
        documented["benchmark"],
        documented["machine"],
        documented["options"],
        (Work(work["name"], work["title"], {"jetstream": side}, (target,)),),
    ).to_json()
    assert documented["format"] == FORMAT
    assert shape(report) == shape(documented)

"""docs/performance.md lists the works, the targets and the JSON that the benchmarks have."""

from __future__ import annotations

from holdfast.bench.compare.compare_jetstream import (
    HOLDFAST,
    HOLDFAST_APPLIED,
    HOLDFAST_DIRECT,
    PLANS,
    table,
)
from holdfast.bench.harness import FORMAT, Goal, Measurement, Report, Work
from tests.support.documents import documented_json, read, shape
from tests.support.documents import table as documented_table

DOCUMENT = read("performance.md")


def test_every_work_is_listed_in_its_order() -> None:
    assert [row[0] for row in documented_table(DOCUMENT, "name")] == [plan.name for plan in PLANS]


def test_the_results_have_a_row_for_each_work_with_its_target() -> None:
    works = []
    for plan in PLANS:
        figures = {"per_second": 1.0, "p50_ms": 1.0, "p99_ms": 1.0}
        sides = {side: Measurement((figures,)) for side in plan.sides}
        works.append(Work(plan.name, plan.title, sides, plan.targets))
    shown = table(Report("compare_jetstream", {}, {}, tuple(works)))
    assert all(len(row) == len(shown.columns) for row in shown.rows)
    assert all(row[4] == "1.00x" for row in shown.rows)
    suffixes = {HOLDFAST: "", HOLDFAST_APPLIED: ", `applied`", HOLDFAST_DIRECT: ", direct"}
    ours = [(plan, side) for plan in PLANS for side in plan.sides if side in suffixes]
    target = shown.columns.index("target")
    expected = [
        (
            f"{f'`{plan.name}`' if suffixes[side] else plan.name}{suffixes[side]}",
            row[target].replace("20.00 ms", "20 ms"),
        )
        for (plan, side), row in zip(ours, shown.rows, strict=True)
    ]
    documented = documented_table(DOCUMENT, "work", "holdfast")
    assert [(row[0], row[target]) for row in documented] == expected


def test_the_report_has_the_documented_shape() -> None:
    documented = documented_json(DOCUMENT)
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

"""Tables of figures: one row for each figure of each side, in the unit that its name ends
with. Pure.

Used by the benchmarks of holdfast alone, whose works have little in common. The comparison with its
peers has its own table.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

from holdfast.bench.harness import Goal, Report, Table, Work

_COLUMNS: Final = ("work", "side", "figure", "median", "lowest", "highest", "target", "reached")
_VERDICTS: Final = {True: "yes", False: "no", None: "?"}


def figures_table(report: Report, shown_figures: Sequence[str]) -> Table:
    """Return the measured figures that have a target or match one of `shown_figures`.

    In `shown_figures`, `*` matches any text.
    """
    rows = []
    for work in report.works:
        for side, measurement in work.sides.items():
            for figure in measurement.figures:
                target = _target(work, side, figure)
                if target is None and not any(fnmatchcase(figure, each) for each in shown_figures):
                    continue
                spread = measurement.spread(figure)
                cells = [work.title, side, _name(figure)]
                cells += [shown(figure, value) for value in spread]
                if target is None:
                    cells += ["-", "-"]
                else:
                    sign = ">=" if target.at_least else "<="
                    cells += [f"{sign} {_bound(target)}", _VERDICTS[target.reached(work.sides)]]
                rows.append(tuple(cells))
    return Table(_COLUMNS, tuple(rows), _COLUMNS[3:6])


def shown(figure: str, value: float) -> str:
    """Return a value with the unit that the name of `figure` ends with."""
    if figure.endswith("bytes_per_second"):
        return f"{_size(value)}/s"
    if figure.endswith("per_second"):
        return f"{value:,.1f}/s" if value < 10 else f"{value:,.0f}/s"
    if figure.endswith("_ms"):
        return f"{value:,.2f} ms" if value < 100 else f"{value:,.0f} ms"
    if "_us_per_" in figure:
        return f"{value:,.2f} µs"
    if figure.endswith("_seconds"):
        return f"{value:,.2f} s"
    if "dollars" in figure:
        return f"${value:,.2f}"
    if figure.endswith("_ratio"):
        return f"{value * 100:.1f} %"
    if figure.endswith("_bytes") or "_bytes_per_" in figure or figure.startswith("bytes_"):
        return _size(value)
    return f"{value:,.0f}"


def _size(value: float) -> str:
    """Format a size in powers of ten, like the targets."""
    if abs(value) < 1000:
        return f"{value:,.1f} B"
    return f"{value / 1e3:,.1f} kB" if abs(value) < 1e6 else f"{value / 1e6:,.1f} MB"


def _name(figure: str) -> str:
    figure = figure.replace("_us_per_", "_per_")
    for unit in ("_ms", "_seconds", "_ratio", "_bytes"):
        figure = figure.removesuffix(unit)
    return figure.replace("_", " ")


def _bound(target: Goal) -> str:
    return f"{target.bound:g}x {target.than}" if target.than else shown(target.figure, target.bound)


def _target(work: Work, side: str, figure: str) -> Goal | None:
    for target in work.targets:
        if (target.side, target.figure) == (side, figure):
            return target
    return None

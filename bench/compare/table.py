"""The report of a comparison with JetStream for people: medians, ratios of medians, and targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.bench.compare.running import ComparisonPlan
from holdfast.bench.figures import shown
from holdfast.bench.harness import Goal, Report, Table, Work

HOLDFAST: Final = "holdfast"
#: The same cluster, with acks before the sync.
HOLDFAST_APPLIED: Final = "holdfast_applied"
#: The same cluster, with a client that reaches the server past NATS.
HOLDFAST_DIRECT: Final = "holdfast_direct"
JETSTREAM: Final = "jetstream"
JETSTREAM_ALWAYS: Final = "jetstream_always"
#: The sides that are ours, with what the titles of their rows end with.
_SUFFIXES: Final = {HOLDFAST: "", HOLDFAST_APPLIED: ", `applied`", HOLDFAST_DIRECT: ", direct"}


def comparison_table(report: Report, plans: Sequence[ComparisonPlan]) -> Table:
    """Return a row for each work of each side of ours."""
    headlines = {plan.name: plan.headline for plan in plans}
    rows = []
    for work in report.works:
        headline = headlines[work.name]
        for ours in (name for name in work.sides if name in _SUFFIXES):
            targets = [target for target in work.targets if target.side == ours]
            cells = [work.title + _SUFFIXES[ours], _cell(work, ours, headline)]
            cells += [_cell(work, peer, headline) for peer in (JETSTREAM, JETSTREAM_ALWAYS)]
            cells += [_ratio(work, ours, peer, headline) for peer in (JETSTREAM, JETSTREAM_ALWAYS)]
            cells.append(", ".join(_bound(target) for target in targets) or "-")
            cells.append(
                ", ".join(_verdict(target.reached(work.sides)) for target in targets) or "-"
            )
            rows.append(tuple(cells))
    columns = ("work", "holdfast", "JetStream", "JetStream always", "ratio", "ratio always")
    return Table((*columns, "target", "reached"), tuple(rows), columns[1:])


def _cell(work: Work, side: str, headline: str) -> str:
    if side not in work.sides:
        return "-"
    spread = work.sides[side].spread(headline)
    median, low, high = (shown(headline, value) for value in spread)
    return f"{median} ({low} to {high})"


def _ratio(work: Work, ours: str, peer: str, headline: str) -> str:
    value = Goal(ours, headline, 0.0, than=peer).measured(work.sides)
    return "-" if value is None else f"{value:.2f}x"


def _bound(target: Goal) -> str:
    sign = "" if target.at_least else "at most "
    if not target.than:
        return f"{sign}{shown(target.figure, target.bound)}"
    peer = " always" if target.than == JETSTREAM_ALWAYS else ""
    return f"{sign}{target.bound:g}x{peer}"


def _verdict(reached: bool | None) -> str:
    return {True: "yes", False: "no", None: "?"}[reached]

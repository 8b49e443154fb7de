"""What a torture found, as a table for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from statistics import median
from typing import Final

from rich.console import Console
from rich.table import Table

from holdfast.protocol.messages import ChangeKind
from tests.support.checking.history import Operation, Outcome
from tests.torture.faults import FaultKind
from tests.torture.measure import pauses, recoveries
from tests.torture.run import Result
from tests.torture.workload import is_stream

_SHOWN_VIOLATIONS: Final = 40
#: Always told, also when there are none.
RULES: Final = ("lost", "stored twice", "two orders")


def print_report(
    result: Result,
    console: Console,
    kinds: Iterable[StrEnum] = FaultKind,
    rules: Sequence[str] = RULES,
) -> None:
    """Print all numbers, and then what is wrong: `kinds` are the faults that there may be, `rules`
    what is told also if it was never broken."""
    operations = [one for one in result.history.operations if one.label != "marker"]
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=not console.is_terminal)
    table.add_row("seed", str(result.seed))
    table.add_row("seconds", f"{result.seconds:g}")
    _add_operations(table, operations, result.seconds)
    _add_faults(table, result, kinds)
    _add_pauses(table, result)
    for document in result.documents:
        table.add_row("document typed", "", document)
    _add_verdict(table, result, rules)
    console.print(table)
    for violation in result.violations[:_SHOWN_VIOLATIONS]:
        console.print(f"WRONG: {violation}", style="red")
    if len(result.violations) > _SHOWN_VIOLATIONS:
        console.print(f"and {len(result.violations) - _SHOWN_VIOLATIONS} more", style="red")


def _add_operations(table: Table, operations: Sequence[Operation], seconds: float) -> None:
    acked = [one for one in operations if one.outcome is Outcome.OK]
    table.add_row("operations", f"{len(operations):,}", f"{len(acked) / seconds:,.0f} a second")
    counts = Counter(_label(operation) for operation in acked)
    for label, count in sorted(counts.items()):
        table.add_row(f"  {label}", f"{count:,}", f"{count / seconds:,.0f} a second")
    refused = Counter(_code(one) for one in operations if one.outcome is Outcome.REFUSED)
    for code, count in sorted(refused.items()):
        table.add_row(f"  refused: {code}", f"{count:,}")
    unknown = Counter(_code(one) or "never" for one in operations if one.outcome is Outcome.UNKNOWN)
    for code, count in sorted(unknown.items()):
        table.add_row(f"  given up: {code}", f"{count:,}")


def _label(operation: Operation) -> str:
    return f"{'stream' if is_stream(operation.store) else 'kv'} {operation.label}"


def _code(operation: Operation) -> str:
    return operation.error.partition(":")[0]


def _add_faults(table: Table, result: Result, kinds: Iterable[StrEnum]) -> None:
    table.add_row("faults", f"{len(result.faults):,}")
    counts = Counter(fault.kind for fault in result.faults)
    for kind in kinds:
        table.add_row(f"  {kind}", f"{counts[kind]:,}")


def _add_pauses(table: Table, result: Result) -> None:
    longest = pauses(result.history)
    if longest:
        middle = median(pause.seconds for pause in longest)
        table.add_row(
            "longest pause of a store",
            f"{middle:.2f} s",
            f"median; {longest[0].seconds:.2f} s at most, of {longest[0].store}",
        )
    found = recoveries(result.history, result.faults)
    for what, seconds in (
        ("first ack after kill -9 alone", [one.seconds for one in found]),
        (
            "followers told of it",
            [one.heard_seconds for one in found if one.heard_seconds is not None],
        ),
    ):
        if seconds:
            table.add_row(
                what,
                f"{median(seconds):.2f} s",
                f"median of {len(seconds)} stores; {max(seconds):.2f} s at most",
            )


def _add_verdict(table: Table, result: Result, rules: Sequence[str]) -> None:
    followings = result.history.followings
    told = sum(len(following.changes) for following in followings)
    resets = sum(
        kind is ChangeKind.RESET for following in followings for kind, _, _ in following.changes
    )
    table.add_row(
        "subscriptions", f"{len(followings):,}", f"told {told:,} changes, {resets:,} resets"
    )
    counts = {rule: sum(f": {rule}:" in one for one in result.violations) for rule in rules}
    others = len(result.violations) - sum(counts.values())
    for rule, count in {**counts, "wrong otherwise": others}.items():
        table.add_row(rule, f"{count:,}", style="red" if count else "green")

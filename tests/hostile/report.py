"""What a run found, as a table for people."""

from __future__ import annotations

from statistics import median
from typing import Final

from rich.console import Console
from rich.table import Table

from tests.hostile.run import Result
from tests.hostile.tokens.attack import TokenAttack
from tests.hostile.verdict import LONGEST_PAUSE_SECONDS
from tests.support.checking.history import Outcome

_SHOWN: Final = 400


def print_report(result: Result, console: Console) -> None:
    """Print all numbers, and then what is wrong."""
    report = result.report
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=not console.is_terminal)
    table.add_row("seed", str(result.seed))
    table.add_row("seconds", f"{result.seconds:.0f}")
    rate = report.operations / result.seconds
    table.add_row("hostile operations", f"{report.operations:,}", f"{rate:,.0f} a second")
    for name, count in sorted(report.volleys.items()):
        table.add_row(f"  {name}", f"{report.operations_of[name]:,}", f"{count:,} volleys")
    table.add_row("messages that came back", f"{report.messages_received:,}")
    for code, count in sorted(report.answers.items()):
        table.add_row(f"  {code}", f"{count:,}")
    for reason, count in sorted(report.nats_errors.items()):
        table.add_row(f"refused by NATS: {reason}", f"{count:,}")
    table.add_row("its connections ended", f"{report.reconnects:,}")
    table.add_row("its own longest wait", f"{report.longest_answer_seconds:.2f} s")
    for server, count in sorted(report.unanswered.items()):
        table.add_row(f"  unanswered by {server}", f"{count:,}")
    if result.tokens is not None:
        _add_holders(table, result.tokens)
    _add_victim(table, result)
    table.add_row("came unasked", f"{result.evidence.misdirected_count:,}")
    late = result.evidence.machine_late_seconds
    table.add_row(
        "this machine late by", f"{late:.2f} s", "at most: what any process here may wait"
    )
    style = "red" if result.wrong else "green"
    table.add_row("wrong", f"{len(result.wrong):,}", style=style)
    console.print(table)
    for text in result.wrong[:_SHOWN]:
        console.print(f"WRONG: {text}", style="red", markup=False)
    if len(result.wrong) > _SHOWN:
        console.print(f"and {len(result.wrong) - _SHOWN} more", style="red")


def _add_holders(table: Table, attack: TokenAttack) -> None:
    report = attack.report
    table.add_row("operations of holders of tokens", f"{report.operations:,}")
    for name, tally in report.tallies.items():
        done = sum(count for code, count in tally.answers.items() if code.endswith("done"))
        refused = sum(
            count for code, count in tally.answers.items() if code.endswith("not_allowed")
        )
        table.add_row(
            f"  {name}",
            f"{tally.operations + tally.operations_behind_nats:,}",
            f"{done:,} done, {refused:,} not allowed, {sum(tally.nats_errors.values()):,} refused "
            f"by NATS, {tally.refused_logins:,} logins refused",
        )
    foreign = sum(tally.foreign for tally in report.tallies.values())
    table.add_row("  at others", f"{foreign:,}", "other tenants, other names, the cluster's own")
    if attack.refused_after_seconds is not None:
        table.add_row("  a revoked token refused after", f"{attack.refused_after_seconds:.1f} s")
    table.add_row("  seen without a right", f"{report.leak_count:,}")


def _add_victim(table: Table, result: Result) -> None:
    operations = [one for one in result.history.operations if one.label != "marker"]
    acked = sum(one.outcome is Outcome.OK for one in operations)
    table.add_row(
        "the other tenant's", f"{len(operations):,}", f"{acked:,} answered as they should"
    )
    told = sum(len(following.changes) for following in result.history.followings)
    table.add_row("  changes followed", f"{told:,}")
    if result.pauses:
        longest = result.pauses[0]
        table.add_row(
            "  longest wait for an ack",
            f"{longest.seconds:.2f} s",
            f"of {longest.store}; {median(one.seconds for one in result.pauses):.2f} s in the "
            "median "
            f"of its stores; at most {LONGEST_PAUSE_SECONDS:g} s",
        )

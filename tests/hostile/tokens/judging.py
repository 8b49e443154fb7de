"""What must hold of holders that attack. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.protocol.access.rights import Right
from holdfast.protocol.access.tokens import EVERY_TENANT
from tests.hostile.tokens.holders import Holder
from tests.hostile.tokens.intruders import Report
from tests.hostile.tokens.office import OFFICE

#: After so many, each holder must have done what it may: otherwise nothing was shown of it.
_ENOUGH_OPERATIONS: Final = 100_000
#: What says that something was done.
_ANSWERED: Final = {"srv done", "coord coordinator: answered", "destroy coordinator: answered"}


def judge(report: Report, holders: Sequence[Holder], errors: Sequence[str] = ()) -> list[str]:
    """Return everything that is wrong; `errors` are what the owner has found changed."""
    wrong = [f"seen without a right: {text}" for text in report.leaks]
    if report.leak_count > len(report.leaks):
        wrong.append(f"seen without a right: {report.leak_count} messages in all")
    wrong += [f"let in without a valid token: {text}" for text in report.let_in]
    wrong += errors
    for holder in holders:
        tally = report.tallies.get(holder.name)
        if tally is None or not tally.operations:
            wrong.append(f"shown nothing: {holder.name} did not attack")
        elif report.operations < _ENOUGH_OPERATIONS:
            continue
        elif holder.logs_in and holder.rights:
            if (Right.READ | Right.LIST) & holder.rights and not (
                tally.marks_seen or holder.tenant not in (OFFICE, EVERY_TENANT)
            ):
                wrong.append(f"shown nothing: {holder.name} has seen nothing of its own")
            if not _ANSWERED & tally.answers.keys():
                wrong.append(f"shown nothing: nothing that {holder.name} asked was done")
        elif not holder.logs_in and not tally.refused_logins:
            wrong.append(f"shown nothing: {holder.name} was never refused")
    return wrong

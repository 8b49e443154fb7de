"""Acks that somebody kept, as arguments of `holdfast verify`, and what it tells of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.render import print_table
from holdfast.protocol.chain.hashing import ChainLink
from holdfast.protocol.limits import SHA256_BYTES

if TYPE_CHECKING:
    from holdfast.shared_fs.inspection.verification import StoreVerdict

_MATCHED = "matched"
_DIFFERS = "differs"


def kept_ack(text: str) -> ChainLink:
    """Return an ack that was given as `SEQ:CHAIN`. Raises UsageError."""
    number, _, chain = text.partition(":")
    try:
        found = ChainLink(int(number), bytes.fromhex(chain))
    except ValueError:
        found = ChainLink(0, b"")
    if found.seq < 1 or len(found.chain) != SHA256_BYTES:
        raise click.UsageError(f"--ack {text!r:.90}: not a seq, a colon and 64 hexadecimals")
    return found


def ack_rows(verdict: StoreVerdict) -> list[dict[str, Any]]:
    """Return what each tier tells of each ack, as JSON. If it matches, nothing has changed from
    `since` up to it."""
    return [
        {"seq": ack.number, "in": tier, "outcome": ack.outcome.value, "since": ack.since}
        for tier, acks in verdict.acks.items()
        for ack in acks
    ]


def problems_of_acks(verdict: StoreVerdict, kept: Sequence[ChainLink]) -> list[str]:
    """Return the acks that differ in a tier, and those that match in none."""
    rows = ack_rows(verdict)
    matched = {row["seq"] for row in rows if row["outcome"] == _MATCHED}
    problems = [
        f"ack {row['seq']}: {row['in']} has another chain, so it, or something before it, is not"
        " what it was"
        for row in rows
        if row["outcome"] == _DIFFERS
    ]
    differing = {row["seq"] for row in rows if row["outcome"] == _DIFFERS}
    lost = sorted({link.seq for link in kept} - matched - differing)
    return [*problems, *(f"ack {seq}: nothing is there that it could be of" for seq in lost)]


def print_acks(rows: Sequence[dict[str, Any]]) -> None:
    """Print what each tier tells of each ack, if there are any."""
    if rows:
        print_table(
            ("ack", "in", "outcome", "unchanged since"),
            [(row["seq"], row["in"], row["outcome"], row["since"] or "-") for row in rows],
            right=("ack", "unchanged since"),
            states=("outcome",),
        )

"""Filters that Spark offers to the source, and the stores and seqs that they select. Pure.

Spark applies every filter again, at little cost, so the source leaves out only rows that certainly
fail a filter. A time does not restrict seqs, because a replaced message has the time of its
replacement. It only excludes snapshots that are too old.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from holdfast.protocol.names import StoreKind


@dataclass(frozen=True, slots=True)
class PushedFilters:
    """What may pass all filters. None for `stores`, `kinds` or `tenants` means any."""

    start_seq: int = 1
    end_seq: int | None = None
    #: Milliseconds since the epoch. Earlier rows do not pass.
    since: int | None = None
    stores: frozenset[str] | None = None
    store_prefixes: tuple[str, ...] = field(default=())
    kinds: frozenset[str] | None = None
    tenants: frozenset[str] | None = None

    def store(self, kind: StoreKind, name: str) -> bool:
        """Return whether rows of a store may pass."""
        return (
            (self.stores is None or name in self.stores)
            and all(name.startswith(prefix) for prefix in self.store_prefixes)
            and (self.kinds is None or kind.word in self.kinds)
        )

    def within(self, start_seq: int, end_seq: int | None) -> PushedFilters:
        """Return these filters, restricted to the seqs from `start_seq` to `end_seq`, or to
        the end."""
        ends = [end for end in (self.end_seq, end_seq) if end is not None]
        return replace(
            self,
            start_seq=max(self.start_seq, start_seq),
            end_seq=max(0, min(ends)) if ends else None,
        )


def wanted_of(filters: Iterable[Filter]) -> PushedFilters:
    """Return what may pass `filters`, all of which have to hold."""
    wanted = PushedFilters()
    for one in filters:
        wanted = _narrowed(wanted, one)
    return wanted


def _narrowed(wanted: PushedFilters, one: Filter) -> PushedFilters:
    match one:
        case EqualTo(("seq",), int(seq)) | EqualNullSafe(("seq",), int(seq)):
            return _seqs(wanted, seq, seq)
        case GreaterThan(("seq",), int(seq)):
            return _seqs(wanted, seq + 1, None)
        case GreaterThanOrEqual(("seq",), int(seq)):
            return _seqs(wanted, seq, None)
        case LessThan(("seq",), int(seq)):
            return _seqs(wanted, 1, seq - 1)
        case LessThanOrEqual(("seq",), int(seq)):
            return _seqs(wanted, 1, seq)
        case In(("seq",), seqs) if seqs and all(type(seq) is int for seq in seqs):
            return _seqs(wanted, min(seqs), max(seqs))
        case GreaterThan(("time",), time) | GreaterThanOrEqual(("time",), time):
            return _since(wanted, time)
        case EqualTo((column,), str(text)) | EqualNullSafe((column,), str(text)):
            return _words(wanted, column, frozenset([text]))
        case In((column,), texts) if all(isinstance(text, str) for text in texts):
            return _words(wanted, column, frozenset(texts))
        case StringStartsWith(("store",), prefix):
            return replace(wanted, store_prefixes=(*wanted.store_prefixes, prefix))
    return wanted


def _seqs(wanted: PushedFilters, start_seq: int, end_seq: int | None) -> PushedFilters:
    # An entry has no seq, so it passes no comparison of one.
    streams = _both(wanted.kinds, frozenset([StoreKind.STREAM.word]))
    return replace(wanted.within(start_seq, end_seq), kinds=streams)


def _since(wanted: PushedFilters, time: Any) -> PushedFilters:
    if not isinstance(time, datetime.datetime) or time.tzinfo is None:
        return wanted
    return replace(wanted, since=max(wanted.since or 0, int(time.timestamp() * 1000)))


def _words(wanted: PushedFilters, column: str, words: frozenset[str]) -> PushedFilters:
    match column:
        case "store":
            return replace(wanted, stores=_both(wanted.stores, words))
        case "kind":
            return replace(wanted, kinds=_both(wanted.kinds, words))
        case "tenant":
            return replace(wanted, tenants=_both(wanted.tenants, words))
    return wanted


def _both(first: frozenset[str] | None, second: frozenset[str]) -> frozenset[str]:
    return second if first is None else first & second

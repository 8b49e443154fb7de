"""How often a server may put its log into the bucket to keep to a budget: pure.

The budget flows into a purse, evenly through the day, and every request to the bucket takes out of
it, also those of snapshots, fences and takeovers. Only puts of the log can be delayed without
harm, so they are what is stretched:

    purse    1/2 or more     1/4                       0
    puts     every 250 ms    what can go on for ever   that, squared; at most every 1.5 s

Snapshots that are made only because an export would lack changes (`behind.py`) wait longer too: up
to four times as long, when the purse is at 1/4.

In between, the interval grows evenly on a logarithmic scale. A server that is busy for long settles
at 1/4, where it spends what flows in. One that is busy now and then lives on the purse and keeps
its pace. The purse holds an hour's share, and that hour is taken off what flows in. So no 24 hours
cost more than the budget, unless puts every 1.5 s, or the other requests, cost more than it: that
is `EXCEEDED`, and the server goes on all the same.

An ack promises what it always does, for it waits for its put. This module decides only when that
put begins. Time is an argument, in seconds of any one clock.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Final

from holdfast.protocol.limits import (
    BUDGET_PURSE_SECONDS,
    LOG_OBJECT_SECONDS,
    MAX_LAG_STRETCH,
    MAX_LOG_OBJECT_SECONDS,
)

_DAY_SECONDS: Final = 86_400.0
#: How far back the spending on other requests is averaged: snapshots come in passes of minutes.
_OTHER_SECONDS: Final = 600.0
#: Shares of the purse: puts are stretched below the first; at the second they spend what flows in.
_FREE_SHARE: Final = 0.5
_STEADY_SHARE: Final = 0.25
#: Shares at which the state changes, each way. Apart, so that it does not change to and fro.
_STRETCHED_BELOW: Final = 0.375
_WITHIN_ABOVE: Final = 0.625
_KEPT_ABOVE: Final = 0.125


class BudgetState(StrEnum):
    """How a budget is kept."""

    #: Puts have their full pace, or nearly.
    WITHIN = "within"
    #: Puts are stretched, and that suffices.
    STRETCHED = "stretched"
    #: The purse is empty: the budget is too small for what is written.
    EXCEEDED = "exceeded"


class FlushBudget:
    """The budget of one process."""

    def __init__(self, dollars_per_day: float, put_dollars: float, now: float) -> None:
        """`put_dollars` is the price of one put. The purse begins half full: a server that is
        restarted again and again must not begin with a full one each time."""
        assert dollars_per_day > 0 and put_dollars >= 0
        self.dollars_per_day = dollars_per_day
        self.state = BudgetState.WITHIN
        self.interval_seconds = LOG_OBJECT_SECONDS
        self._put_dollars = put_dollars
        self._flow = dollars_per_day / (_DAY_SECONDS + BUDGET_PURSE_SECONDS)
        self._purse = self._capacity / 2
        self._other_flow = 0.0
        self._at = now

    @property
    def left_ratio(self) -> float:
        """The share of the purse that is left, 0 to 1."""
        return max(0.0, self._purse / self._capacity)

    @property
    def lag_stretch(self) -> float:
        """By how much snapshots of open stores are delayed, which are made for exports alone: 1 as
        long as puts have their full pace, and at most MAX_LAG_STRETCH when the purse is low."""
        empty = (_FREE_SHARE - self._purse / self._capacity) / (_FREE_SHARE - _STEADY_SHARE)
        return math.pow(MAX_LAG_STRETCH, min(max(empty, 0.0), 1.0))

    @property
    def least_dollars_per_day(self) -> float:
        """What puts alone cost a day at the longest interval, if something is written all the
        time. A smaller budget is kept only while the server rests often enough."""
        return self._put_dollars * _DAY_SECONDS / MAX_LOG_OBJECT_SECONDS

    def spent(self, now: float, dollars: float, log_puts: int) -> float:
        """Note that `dollars` were spent since the last call, `log_puts` puts of the log among
        that. Return the interval of puts from now on, in seconds."""
        passed_seconds = max(0.0, now - self._at)
        self._at = max(now, self._at)
        # A debt is forgotten beyond a purse: after an outage of the purse, or a burst that no
        # interval could stop, puts need not be slow for days.
        left = self._purse + self._flow * passed_seconds - dollars
        self._purse = min(max(left, -self._capacity), self._capacity)
        self._note_other(passed_seconds, dollars - log_puts * self._put_dollars)
        self.interval_seconds = self._interval()
        self.state = self._next_state()
        return self.interval_seconds

    @property
    def _capacity(self) -> float:
        return self._flow * BUDGET_PURSE_SECONDS

    def _note_other(self, passed_seconds: float, dollars: float) -> None:
        if passed_seconds > 0:
            weight = -math.expm1(-passed_seconds / _OTHER_SECONDS)
            self._other_flow += weight * (max(0.0, dollars) / passed_seconds - self._other_flow)

    def _interval(self) -> float:
        for_puts = self._flow - self._other_flow
        if for_puts * MAX_LOG_OBJECT_SECONDS <= self._put_dollars:
            steady = MAX_LOG_OBJECT_SECONDS
        else:
            steady = max(LOG_OBJECT_SECONDS, self._put_dollars / for_puts)
        empty = (_FREE_SHARE - self._purse / self._capacity) / (_FREE_SHARE - _STEADY_SHARE)
        stretch = math.pow(steady / LOG_OBJECT_SECONDS, min(max(empty, 0.0), 2.0))
        return min(LOG_OBJECT_SECONDS * stretch, MAX_LOG_OBJECT_SECONDS)

    def _next_state(self) -> BudgetState:
        share = self._purse / self._capacity
        if share <= 0 or (self.state is BudgetState.EXCEEDED and share < _KEPT_ABOVE):
            return BudgetState.EXCEEDED
        is_stretched = self.state is not BudgetState.WITHIN
        if self.interval_seconds <= LOG_OBJECT_SECONDS and not is_stretched:
            return BudgetState.WITHIN
        if share < (_WITHIN_ABOVE if is_stretched else _STRETCHED_BELOW):
            return BudgetState.STRETCHED
        return BudgetState.WITHIN

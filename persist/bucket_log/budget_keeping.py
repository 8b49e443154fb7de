"""Keeps a server's bucket within a budget, by the pace of its log: `flush_budget.py` decides.

It looks every ten seconds at what all requests to the bucket have cost so far, and sets the
interval of the puts. It says so when puts begin to be stretched, when that no longer suffices, and
when it is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from holdfast.persist.bucket_log.flush_budget import BudgetState, FlushBudget
from holdfast.protocol.monitoring.bucket_numbers import dollars_of
from holdfast.protocol.monitoring.prices import Prices
from holdfast.shared_fs.bucket.bucket_usage import Usage
from holdfast.shared_fs.disk.log_pace import LogPace

logger = logging.getLogger("holdfast.persist")

#: Within that, a server at full pace spends forty puts, a fifth of a thousandth of a dollar.
_LOOK_SECONDS: Final = 10.0


class BudgetKeeping:
    """The budget of one incarnation."""

    def __init__(
        self,
        server: str,
        dollars_per_day: float,
        prices: Prices,
        usage: Callable[[], Usage],
        pace: LogPace,
    ) -> None:
        """`usage` returns what was asked of the bucket so far."""
        self._server = server
        self._dollars_per_day = dollars_per_day
        self._prices = prices
        self._usage = usage
        self._pace = pace
        self._spent = self._dollars()
        self._puts = pace.put_count
        self._budget: FlushBudget | None = None

    @property
    def dollars_per_day(self) -> float:
        """What the server may spend on the bucket in a day."""
        return self._dollars_per_day

    @property
    def left_ratio(self) -> float:
        """The share of what is saved up for bursts that is left, 0 to 1."""
        return 1.0 if self._budget is None else self._budget.left_ratio

    @property
    def lag_stretch(self) -> float:
        """By how much the bound of what the bucket may lack is stretched."""
        return 1.0 if self._budget is None else self._budget.lag_stretch

    async def run(self) -> None:
        """Keep to the budget, until cancelled."""
        loop = asyncio.get_running_loop()
        self.begin(loop.time())
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self.look(loop.time())

    def begin(self, now: float) -> None:
        """Begin to count, and say what the budget can buy."""
        budget = FlushBudget(self._dollars_per_day, self._prices.request("put"), now)
        self._budget = budget
        is_small = self._dollars_per_day < budget.least_dollars_per_day
        logger.log(
            logging.WARNING if is_small else logging.INFO,
            "budget.begun server=%s dollars_per_day=%g least_dollars_per_day=%.3f currency=%s",
            self._server,
            self._dollars_per_day,
            budget.least_dollars_per_day,
            self._prices.currency,
        )

    def look(self, now: float) -> None:
        """Set the pace by what was spent since the last look."""
        budget = self._budget
        assert budget is not None
        spent, puts = self._dollars(), self._pace.put_count
        before = budget.state
        self._pace.interval_seconds = budget.spent(now, spent - self._spent, puts - self._puts)
        self._spent, self._puts = spent, puts
        if budget.state is not before:
            self._say(budget)

    def _say(self, budget: FlushBudget) -> None:
        numbers = (
            f"dollars_per_day={self._dollars_per_day:g} "
            f"flush_seconds={self._pace.interval_seconds:.2f} left_ratio={budget.left_ratio:.2f}"
        )
        if budget.state is BudgetState.WITHIN:
            logger.info("budget.within server=%s %s", self._server, numbers)
        elif budget.state is BudgetState.STRETCHED:
            logger.info("budget.stretched server=%s %s", self._server, numbers)
        else:
            logger.warning("budget.exceeded server=%s %s", self._server, numbers)

    def _dollars(self) -> float:
        return sum(dollars_of(self._usage(), self._prices).values())

"""The budget of a server: what is counted, what is set, and what the log says."""

from __future__ import annotations

import logging

import pytest

from holdfast.persist.bucket_log.budget_keeping import BudgetKeeping
from holdfast.protocol.limits import LOG_OBJECT_SECONDS, MAX_LOG_OBJECT_SECONDS
from holdfast.protocol.monitoring.prices import S3_PRICES, Prices
from holdfast.shared_fs.bucket.bucket_usage import BucketUsage, RequestClass
from holdfast.shared_fs.disk.log_pace import LogPace


class Server:
    """A server whose requests are counted, looked at every ten seconds."""

    def __init__(self, dollars_per_day: float, prices: Prices = S3_PRICES) -> None:
        self.usage = BucketUsage()
        self.pace = LogPace()
        self.now = 100.0
        # What was there before does not count.
        self.usage.add(RequestClass.PUT)
        self.keeping = BudgetKeeping("s1", dollars_per_day, prices, self.usage.total, self.pace)
        self.keeping.begin(self.now)

    def busy(self, looks: int, request: RequestClass = RequestClass.PUT) -> None:
        for _ in range(looks):
            for _ in range(int(10 / self.pace.interval_seconds)):
                self.usage.add(request)
                self.pace.put_count += request is RequestClass.PUT
            self.rest(1)

    def rest(self, looks: int) -> None:
        for _ in range(looks):
            self.now += 10
            self.keeping.look(self.now)


def events(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int]]:
    return [(record.getMessage().split(" ")[0], record.levelno) for record in caplog.records]


def test_a_server_says_when_its_puts_are_stretched_and_when_no_longer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "holdfast.persist")
    server = Server(0.6)
    server.busy(360)
    assert LOG_OBJECT_SECONDS < server.pace.interval_seconds < MAX_LOG_OBJECT_SECONDS
    assert 0 < server.keeping.left_ratio < 0.5
    server.rest(720)
    assert server.pace.interval_seconds == LOG_OBJECT_SECONDS
    assert events(caplog) == [
        ("budget.begun", logging.INFO),
        ("budget.stretched", logging.INFO),
        ("budget.within", logging.INFO),
    ]


def test_a_budget_below_what_the_slowest_puts_cost_is_named_at_once_and_when_exceeded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "holdfast.persist")
    server = Server(0.1)
    server.busy(720)
    assert server.pace.interval_seconds == MAX_LOG_OBJECT_SECONDS
    assert events(caplog)[0] == ("budget.begun", logging.WARNING)
    assert events(caplog)[-1] == ("budget.exceeded", logging.WARNING)


def test_free_requests_use_up_nothing() -> None:
    server = Server(0.1)
    server.busy(360, RequestClass.DELETE)
    assert server.pace.interval_seconds == LOG_OBJECT_SECONDS
    dear = Server(0.1, Prices(per_1000=dict(S3_PRICES.per_1000) | {"delete": 1.0}))
    dear.busy(36, RequestClass.DELETE)
    assert dear.keeping.left_ratio == 0

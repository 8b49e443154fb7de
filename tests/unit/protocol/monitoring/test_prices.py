"""What a bucket costs, by an operator's prices."""

from __future__ import annotations

import pytest

from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.monitoring.prices import (
    MONTH_SECONDS,
    S3_PRICES,
    parse_prices,
    per_day,
    per_month,
)


def test_four_puts_a_second_are_fifty_two_dollars_a_month() -> None:
    dollars = S3_PRICES.requests({"put": 4, "delete": 100, "unheard_of": 5})
    assert per_month(sum(dollars.values()), 1.0) == pytest.approx(52.6, abs=0.1)
    assert per_day(sum(dollars.values()), 1.0) == pytest.approx(1.73, abs=0.01)
    assert S3_PRICES.storage_per_month(1 << 30) == pytest.approx(0.023)
    assert per_month(1.0, MONTH_SECONDS) == 1.0
    assert per_month(1.0, 0.0) == per_day(1.0, -1.0) == 0.0


def test_a_table_changes_only_what_it_names() -> None:
    prices = parse_prices(
        '{"currency": "EUR", "per_1000": {"put": 0.01}, "gib_month": 0, "gib_received": 0.09}'
    )
    assert prices.currency == "EUR"
    assert prices.requests({"put": 1000, "get": 1000}) == {"put": 0.01, "get": 0.0004}
    assert prices.storage_per_month(1 << 40) == 0
    assert prices.transfer(sent_bytes=1 << 40, received_bytes=2 << 30) == pytest.approx(0.18)
    assert parse_prices("{}") == S3_PRICES


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "nonsense", '{"prices": 1}', '{"per_1000": {"copy": 1}}', '{"per_1000": []}',
        '{"gib_month": -1}', '{"gib_month": "1"}', '{"gib_month": NaN}', '{"gib_month": true}',
        '{"per_1000": {"put": 1e7}}', '{"currency": "too long a name"}', '{"currency": 5}',
        "[" * 5000, " " * 20_000,
    ],
)
def test_a_table_with_something_wrong_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        parse_prices(text)

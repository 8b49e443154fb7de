"""What a server counts of its refusals."""

from __future__ import annotations

from holdfast.protocol.errors import BusyError, RateLimitedError, wire_fields
from holdfast.protocol.monitoring.counting import Statistics
from holdfast.protocol.monitoring.description import PartKind
from holdfast.protocol.monitoring.refusals import Refusals, cause_of


def test_refusals_are_counted_by_code_and_busy_ones_by_cause() -> None:
    statistics = Statistics(PartKind.PERSIST, "s1", 0)
    refusals = Refusals(statistics)
    for store in ("default/stream/a", "acme/kv/b"):
        error = BusyError(what=f"the queue of {store}")
        refusals.group(error.code, wire_fields(error))
    refusals.operations("wrong_last_seq", 3)
    refusals.operations(RateLimitedError.code, 2)
    assert {(sample.name, sample.labels): sample.value for sample in statistics.samples()} == {
        ("errors_total", (("code", "busy"),)): 2,
        ("errors_total", (("code", "wrong_last_seq"),)): 3,
        ("errors_total", (("code", "rate_limited"),)): 2,
        ("persist_busy_total", (("cause", "queue"),)): 2,
        ("persist_busy_total", (("cause", "rate"),)): 2,
    }


def test_a_cause_names_no_store_and_no_number() -> None:
    assert cause_of("the tenant's share of the commit log of 's1'") == "tenant's share"
    assert cause_of("the tenant's max_open_stores, which is 7,") == "tenant's max_open_stores"

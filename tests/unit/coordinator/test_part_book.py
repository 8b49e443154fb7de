"""What the coordinator remembers of the parts of a cluster."""

from __future__ import annotations

import pytest

from holdfast.coordinator.answering.parsing import parse
from holdfast.coordinator.answering.requests import ListStatistics, TellStatistics
from holdfast.coordinator.decisions.part_book import PartBook, PartKey
from holdfast.protocol.errors import HoldfastError, InvalidArgumentError, InvalidNameError
from holdfast.protocol.frames import encode, encode_control
from holdfast.protocol.limits import (
    MAX_PARTS,
    MAX_PARTS_OF_TENANT,
    MAX_REPORT_BYTES,
    PAGE_BYTES,
    REPORT_FORGOTTEN_SECONDS,
)


def report(number: int = 1, padding: int = 0) -> bytes:
    numbers = {f"n{index}": number for index in range(padding)} | {"n": number}
    return encode({"started": 1, "host": "h", "numbers": numbers})


def names(book: PartBook, now: float = 0.0, tenant: str | None = None) -> list[object]:
    found: list[object] = []
    after: PartKey | None = None
    while True:
        rows, after = book.page(after, now, tenant)
        found += [row[1] for row in rows]
        if after is None:
            return found


def test_the_last_report_of_each_part_is_told_with_its_age() -> None:
    book = PartBook()
    book.hear(PartKey("persist", "p1"), report(1), 1.0, "i1")
    book.hear(PartKey("persist", "p1"), report(2), 2.0, "i2")
    assert book.page(None, 2.5) == ([["persist", "p1", "", "i2", 0.5, report(2)]], None)


def test_nonsense_is_refused_and_the_last_good_report_stays() -> None:
    book = PartBook()
    book.hear(PartKey("persist", "p1"), report(1), 1.0)
    for nonsense in (b"", b"x" * (MAX_REPORT_BYTES + 1), encode({"started": 1}), 7):
        with pytest.raises(HoldfastError):
            book.hear(PartKey("persist", "p1"), nonsense, 2.0)
    assert book.page(None, 2.0)[0][0][4:] == [1.0, report(1)]


def test_a_part_that_fell_silent_is_forgotten() -> None:
    book = PartBook()
    book.hear(PartKey("persist", "p1"), report(), 0.0)
    book.hear(PartKey("persist", "p2"), report(), 30.0)
    assert names(book, REPORT_FORGOTTEN_SECONDS) == ["p1", "p2"]
    assert names(book, REPORT_FORGOTTEN_SECONDS + 1) == ["p2"]


def test_a_standby_that_becomes_active_is_one_part() -> None:
    book = PartBook()
    book.hear(PartKey("standby", "c1"), report(), 0.0)
    book.hear(PartKey("coordinator", "c1"), report(), 1.0)
    assert [row[0] for row in book.page(None, 1.0)[0]] == ["coordinator"]


def test_a_tenant_can_invent_few_gateways_and_only_for_itself() -> None:
    book = PartBook()
    for number in range(2 * MAX_PARTS_OF_TENANT):
        book.hear(PartKey("gateway_http", f"g{number:03}", "eve"), report(), 0.0)
    book.hear(PartKey("gateway_http", "g", "acme"), report(), 0.0)
    book.hear(PartKey("persist", "p1"), report(), 0.0)
    assert names(book, tenant="acme") == ["g", "p1"]
    assert len(names(book, tenant="eve")) == MAX_PARTS_OF_TENANT + 1
    assert len(names(book)) == MAX_PARTS_OF_TENANT + 2


def test_parts_beyond_the_limit_are_ignored_until_others_are_silent() -> None:
    book = PartBook()
    for number in range(MAX_PARTS + 5):
        book.hear(PartKey("persist", f"p{number}"), report(), 0.0)
    assert len(names(book)) == MAX_PARTS
    book.hear(PartKey("persist", "late"), report(), 2 * REPORT_FORGOTTEN_SECONDS)
    assert names(book, 2 * REPORT_FORGOTTEN_SECONDS) == ["late"]


def test_pages_fit_in_answers_and_name_each_part_once() -> None:
    book, keys = PartBook(), [PartKey("persist", f"p{number:03}") for number in range(400)]
    for key in keys:
        book.hear(key, report(1, padding=400), 0.0)
    found: list[object] = []
    pages, after = 0, None
    while True:
        rows, after = book.page(after, 0.0)
        assert rows
        assert sum(len(row[5]) for row in rows if isinstance(row[5], bytes)) <= PAGE_BYTES
        found += [row[1] for row in rows]
        pages += 1
        if after is None:
            break
    assert found == [key.name for key in keys]
    assert pages > 1


def test_requests_of_statistics_are_checked() -> None:
    def asked(verb: str, **fields: object) -> object:
        return parse("acme", verb, encode_control(**fields))

    assert asked("statistics") == ListStatistics(None)
    after = ["persist", "p1", ""]
    assert asked("statistics", after=after) == ListStatistics(PartKey("persist", "p1", ""))
    for wrong in ("p1", ["persist"], ["persist", 1, ""], {"a": 1}):
        with pytest.raises(InvalidArgumentError):
            asked("statistics", after=wrong)
    told = asked("report", kind="gateway_http", name="g1", report=b"...")
    assert told == TellStatistics(PartKey("gateway_http", "g1", "acme"), b"...")
    for kind in ("persist", "coordinator", "auth", "", None, ["gateway_http"]):
        with pytest.raises(InvalidArgumentError):
            asked("report", kind=kind, name="g1", report=b"")
    of_cluster = encode_control(kind="auth", name="a1", report=b"...")
    assert parse("_", "report", of_cluster) == TellStatistics(PartKey("auth", "a1"), b"...")
    with pytest.raises(InvalidArgumentError):
        parse("_", "report", encode_control(kind="persist", name="p1", report=b"..."))
    with pytest.raises(InvalidNameError):
        asked("report", kind="gateway_http", name="a b", report=b"")
    with pytest.raises(InvalidArgumentError):
        asked("report", kind="gateway_http", name="g1", report="text")

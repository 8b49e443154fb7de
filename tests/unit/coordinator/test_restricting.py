"""What the coordinator answers to holders of tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.coordinator.answering.bookmarks import Bookmarks
from holdfast.coordinator.answering.requests import (
    LISTING_COST_STORES,
    ListServers,
    ListStatistics,
    ListStores,
    ResolveRequest,
    SuspectRequest,
    store_count,
)
from holdfast.coordinator.answering.restricting import restricted
from holdfast.protocol.access.grants import KnownRights, TokenGrant
from holdfast.protocol.access.rights import ALL_RIGHTS, Right
from holdfast.protocol.access.tokens import EVERY_TENANT
from holdfast.protocol.errors import InvalidNameError, NotAllowedError
from holdfast.protocol.names import StoreId, StoreKind
from tests.support.tokens import a_token

MINE, OTHER = (StoreId("acme", StoreKind.STREAM, name) for name in ("mine.notes", "other.notes"))

BOOKMARKS = Bookmarks()


def grant(rights: Right = ALL_RIGHTS, *stores: str) -> TokenGrant:
    return TokenGrant(a_token(rights, stores or [">"]), KnownRights(), 0.0)


def listing(prefix: str = "") -> ListStores:
    return ListStores("acme", None, prefix, None, 100)


def test_a_store_without_any_right_is_refused_in_its_slot() -> None:
    wrong = InvalidNameError(what="store", name="a b", reason="no")
    request = ResolveRequest((MINE, OTHER, wrong))
    answer = restricted(request, grant(Right.CONSUME, "mine.>"), BOOKMARKS)
    assert isinstance(answer, ResolveRequest)
    mine, other, still_wrong = answer.stores
    assert (mine, still_wrong) == (MINE, wrong)
    assert isinstance(other, NotAllowedError)
    assert other.subject == "stream other.notes"


def test_listing_needs_a_right() -> None:
    with pytest.raises(NotAllowedError) as refused:
        restricted(listing(), grant(Right.READ | Right.WRITE), BOOKMARKS)
    assert refused.value.missing == "list"


@pytest.mark.parametrize(
    ("patterns", "asked", "read"),
    [
        (["project.42.*"], "", "project.42."),
        (["project.42.*"], "project.42.no", "project.42.no"),
        (["project.42.*", "kv:project.43.>"], "", "project.4"),
        (["project.42.*", "user"], "", ""),
        (["*.notes"], "", ""),
        (["notes"], "other", "other"),
    ],
)
def test_a_listing_reads_only_names_that_may_match(
    patterns: list[str], asked: str, read: str
) -> None:
    answer = restricted(listing(asked), grant(Right.LIST, *patterns), BOOKMARKS)
    assert isinstance(answer, ListStores)
    assert answer.prefix == read
    assert answer.sight is not None
    assert store_count(answer) == LISTING_COST_STORES > store_count(listing(asked))


def test_everybody_with_a_token_may_ask_for_servers() -> None:
    for request in (ListServers(), SuspectRequest("s1", "01")):
        assert restricted(request, grant(Right.READ, "notes"), BOOKMARKS) is request


def test_statistics_of_gateways_are_shown_to_their_tenant_and_to_operators() -> None:
    request = ListStatistics(None)
    operator = a_token(tenant=EVERY_TENANT)
    assert restricted(request, grant(Right.READ, "notes"), BOOKMARKS) == replace(
        request, tenant="acme"
    )
    assert restricted(request, TokenGrant(operator, KnownRights(), 0.0), BOOKMARKS) is request


def test_a_bookmark_counts_for_its_token_and_coordinator_and_tells_nothing() -> None:
    mine, other = grant(Right.LIST, "*.notes"), grant(Right.LIST, "*.notes")
    sealed = BOOKMARKS.sealed(mine.id, ("hidden.store", 2))
    assert b"hidden" not in sealed

    def begin(held: TokenGrant, bookmark: bytes, after: tuple[str, int] | None = None) -> object:
        asked = ListStores("acme", None, "", after, 100, bookmark)
        answer = restricted(asked, held, BOOKMARKS)
        assert isinstance(answer, ListStores) and answer.sight is not None
        return answer.sight.begin

    assert begin(mine, sealed) == ("hidden.store", 2)
    assert begin(mine, sealed, ("z", 1)) == ("z", 1)
    assert begin(other, sealed) is None
    assert begin(mine, Bookmarks().sealed(mine.id, ("hidden.store", 2))) is None
    for wrong in (b"", sealed[:-1], b"x" * 40, b"x" * 5_000):
        assert begin(mine, wrong) is None

"""`holdfast tenant reencrypt` does what it can, and says of which stores it could not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli.command import holdfast
from holdfast.cli.tenants import reencrypting
from holdfast.protocol.errors import DecryptionFailedError, HoldfastError, KeyUnavailableError
from holdfast.protocol.names import StoreId, StoreKind

DAMAGED = DecryptionFailedError(store="stream acme/b", place=3)
REPORT = {"epoch": 4, "values": 2, "chunks": 0, "archived": 0, "table": "", "snapshots": 1}


class Owners:
    """Owners of the streams a, b and c, one of which does not do what it is asked."""

    tenant = "acme"

    def __init__(self, error: HoldfastError) -> None:
        self._error = error

    async def find(self, name: str, _: str | None) -> StoreId:
        return StoreId("acme", StoreKind.STREAM, name)

    async def all(self, kind: str | None) -> list[StoreId]:
        return [await self.find(name, kind) for name in "abc"]

    async def ask(self, store: StoreId, verb: str) -> Mapping[str, Any]:
        assert verb == "reencrypt"
        if store.name == "b":
            raise self._error
        return REPORT


def ran(
    monkeypatch: pytest.MonkeyPatch, error: HoldfastError, *names: str
) -> tuple[Result, list[str]]:
    """Run the command; return the stores whose copies were swept, too."""
    swept: list[str] = []

    @asynccontextmanager
    async def connected(_: Any) -> AsyncIterator[Owners]:
        yield Owners(error)

    async def sweep(_: Any, erasure: Any, *__: Any) -> None:
        swept.append(erasure.store.name)

    monkeypatch.setattr(reencrypting, "connected_owners", connected)
    monkeypatch.setattr(reencrypting, "sweep_until_gone", sweep)
    result = CliRunner().invoke(
        holdfast, ["tenant", "reencrypt", "acme", *names, "--yes", "--json"]
    )
    return result, swept


def test_one_store_with_a_damaged_value_keeps_no_other_from_being_swept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result, swept = ran(monkeypatch, DAMAGED)
    report = json.loads(result.stdout)
    assert swept == ["a", "c"]
    assert (result.exit_code, report["complete"]) == (1, False)
    assert [row["name"] for row in report["stores"]] == ["a", "c"]
    assert report["failed"] == [
        {
            "tenant": "acme",
            "name": "b",
            "error": "decryption_failed",
            "message": str(DAMAGED),
        }
    ]


@pytest.mark.parametrize(
    ("error", "names"),
    [(KeyUnavailableError(tenant="acme", key=2, reason="x"), []), (DAMAGED, ["b"])],
)
def test_what_concerns_all_of_them_or_the_only_one_is_the_error_of_the_command(
    monkeypatch: pytest.MonkeyPatch, error: HoldfastError, names: list[str]
) -> None:
    result, swept = ran(monkeypatch, error, *names)
    assert result.exit_code != 0 and swept == []
    assert error.code in result.output

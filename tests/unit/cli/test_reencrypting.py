"""`holdfast tenant reencrypt` does what it can, and says of which stores it could not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import chain
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
    """Owners of the streams of these names, of which b does not do what it is asked."""

    tenant = "acme"
    timeout_seconds = 1.0

    def __init__(self, error: HoldfastError | None, names: list[str]) -> None:
        self._error = error
        self._names = names
        self.asked: list[Mapping[str, Any]] = []

    async def find(self, name: str, _: str | None) -> StoreId:
        return StoreId("acme", StoreKind.STREAM, name)

    async def all(self, kind: str | None) -> list[StoreId]:
        return [await self.find(name, kind) for name in self._names]

    async def ask(self, store: StoreId, verb: str, **fields: Any) -> Mapping[str, Any]:
        assert verb == "reencrypt"
        self.asked.append(fields)
        if store.name == "b" and self._error is not None:
            raise self._error
        return {**REPORT, "was_done": store.name == "c"}


def ran(
    monkeypatch: pytest.MonkeyPatch,
    error: HoldfastError | None,
    *arguments: str,
    names: list[str] | None = None,
) -> tuple[Result, list[list[str]], Owners]:
    """Run the command; return the stores whose copies were swept together, too."""
    swept: list[list[str]] = []
    owners = Owners(error, [*"abc"] if names is None else names)

    @asynccontextmanager
    async def connected(_: Any) -> AsyncIterator[Owners]:
        yield owners

    async def sweep(_: Any, erasure: Any, *__: Any) -> None:
        verb, fields = erasure.sweep
        assert (verb, fields["tenant"]) == ("sweep_stores", "acme")
        swept.append([name for _, name, epoch in fields["stores"] if epoch == 4])

    monkeypatch.setattr(reencrypting, "connected_owners", connected)
    monkeypatch.setattr(reencrypting, "sweep_until_gone", sweep)
    result = CliRunner().invoke(holdfast, ["tenant", "reencrypt", "acme", *arguments, "--yes"])
    return result, swept, owners


def test_one_store_with_a_damaged_value_keeps_no_other_from_being_swept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result, swept, owners = ran(monkeypatch, DAMAGED, "--json")
    report = json.loads(result.stdout)
    assert swept == [["a", "c"]], "what was rewritten before may have left copies too"
    assert (result.exit_code, report["complete"]) == (1, False)
    assert [(row["name"], row["done_before"]) for row in report["stores"]] == [
        ("a", False), ("c", True),
    ]  # fmt: skip
    assert report["removed"]["snapshots"] == 2
    assert report["failed"] == [
        {
            "tenant": "acme",
            "name": "b",
            "error": "decryption_failed",
            "message": str(DAMAGED),
        }
    ]
    assert owners.asked == [{}] * 3, "an earlier server gets nothing that it does not know"


@pytest.mark.parametrize(
    ("error", "names"),
    [(KeyUnavailableError(tenant="acme", key=2, reason="x"), []), (DAMAGED, ["b"])],
)
def test_what_concerns_all_of_them_or_the_only_one_is_the_error_of_the_command(
    monkeypatch: pytest.MonkeyPatch, error: HoldfastError, names: list[str]
) -> None:
    result, swept, _ = ran(monkeypatch, error, *names, "--json")
    assert result.exit_code != 0 and swept == []
    assert error.code in result.output


def test_thousands_of_stores_are_swept_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reencrypting, "MAX_SWEPT_STORES", 3)
    names = [f"s{number}" for number in range(7)]
    result, swept, _ = ran(monkeypatch, None, names=names)
    assert [len(each) for each in swept] == [3, 3, 1] and [*chain(*swept)] == names
    assert (result.exit_code, result.stdout) == (
        0, "tenant 'acme': 14 values in 7 stores encrypted anew\n",
    )  # fmt: skip
    result, *_ = ran(monkeypatch, None, names=["a", "c"])
    assert "in 1 stores encrypted anew; 1 stores were before" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--table", "t"], "needs --master-key-file"),
        (["--table", "t", "--master-key-file", "k"], "needs --data"),
        (["notes", "--table", "t", "--master-key-file", "k"], "needs all stores"),
        (["--kind", "kv", "--table", "t", "--master-key-file", "k"], "needs all stores"),
        (["--master-key-file", "k"], "are for --table"),
        (["--bucket", "b"], "are for --table"),
    ],
)
def test_a_table_is_rewritten_with_all_that_this_needs(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: str
) -> None:
    result, swept, owners = ran(monkeypatch, None, *arguments)
    assert (result.exit_code, swept, owners.asked) == (2, [], [])
    assert told in result.stderr

"""The OpenAPI document: it is one, and it has every route."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from jsonschema import Draft202012Validator

from holdfast.client.connection import Client
from holdfast.gateway.http.application import WebOptions, routes
from holdfast.gateway.http.console.api import API, ConsoleApi
from holdfast.gateway.http.openapi.document import document
from holdfast.gateway.http.openapi.record_schemas import schema_of
from holdfast.gateway.http.sessions import Sessions
from holdfast.protocol.names import StoreKind

#: The schema of the OpenAPI Initiative for documents of version 3.1.
SCHEMA = Path(__file__).parents[3] / "support" / "schemas" / "openapi-3.1.json"


async def _refuse(token: str | None) -> Client:
    raise AssertionError


def _references(found: Any) -> Iterator[str]:
    if isinstance(found, dict):
        if isinstance(found.get("$ref"), str):
            yield found["$ref"]
        for each in found.values():
            yield from _references(each)
    elif isinstance(found, list):
        for each in found:
            yield from _references(each)


def test_the_document_is_valid_by_its_own_schema_and_refers_to_what_is_there() -> None:
    found = document()
    schema = json.loads(SCHEMA.read_text())
    assert [each.message for each in Draft202012Validator(schema).iter_errors(found)] == []
    references = set(_references(found))
    assert references
    for each in references:
        at: Any = found
        for name in each.removeprefix("#/").split("/"):
            at = at[name]
    for part in found["components"]["schemas"].values():
        Draft202012Validator.check_schema(part)


def test_names_of_operations_are_unique_and_parameters_of_paths_are_in_them() -> None:
    names: list[str] = []
    for path, item in document()["paths"].items():
        for parameter in item.get("parameters", ()):
            assert "{" + parameter["name"] + "}" in path
        names += [each["operationId"] for each in item.values() if isinstance(each, dict)]
    assert len(names) == len(set(names))


def test_every_route_is_in_the_document() -> None:
    sessions = Sessions(_refuse, allows_anonymous=True)
    parts = routes(sessions, asyncio.Event(), WebOptions())
    served = [each.decode() for each in parts]
    documented = list(document()["paths"])
    for start in served:
        if start.startswith(("/v1/", f"{API}/")):
            assert any(path.startswith(start) for path in documented), start
    for path in documented:
        assert any(path.startswith(start) for start in served), path


def test_every_name_below_the_api_of_the_console_is_in_the_document_and_no_other() -> None:
    api = ConsoleApi(Sessions(_refuse, allows_anonymous=True), asyncio.Event())
    paths = [path for path in document()["paths"] if path.startswith(f"{API}/")]
    assert {path.split("/")[3] for path in paths} == api.names


class _Inner(NamedTuple):
    kind: StoreKind
    seen: bool | None


class _Outer(NamedTuple):
    inner: _Inner | None
    by_name: Mapping[str, tuple[float, ...]]


def test_the_schema_of_a_record_takes_its_json_and_nothing_else() -> None:
    check = Draft202012Validator(schema_of(_Outer))
    for valid in (
        {"inner": None, "by_name": {}},
        {"inner": {"kind": 1, "seen": None}, "by_name": {"a": [1, 2.5]}},
    ):
        assert check.is_valid(valid)
    for invalid in (
        {"inner": None},
        {"inner": {"kind": 0}, "by_name": {}},
        {"inner": {"kind": 9, "seen": True}, "by_name": {}},
        {"inner": None, "by_name": {"a": ["x"]}},
    ):
        assert not check.is_valid(invalid)
    with pytest.raises(TypeError):
        schema_of(asyncio.Event)

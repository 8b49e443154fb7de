"""The public API is documented: what there is, what it takes and gives, and which errors it
raises."""

from __future__ import annotations

import builtins
import inspect
import re
import types
from collections.abc import Iterator
from enum import Enum
from typing import Any

import holdfast.client
import holdfast.client.sync
from holdfast.protocol import limits
from holdfast.protocol.errors import ERRORS_BY_CODE, HoldfastError
from tests.support.documents import read

GUIDE = read("guide.md")
MODULES = (holdfast.client, holdfast.client.sync)
#: What is said between the parts, or to operators alone, whose commands have errors of their own.
ONLY_INSIDE = {
    *("already_running", "deposed", "fenced", "not_owner", "writer_gap"),
    *("last_server", "server_in_use", "stale_file_system"),
}


def public() -> Iterator[tuple[str, Any]]:
    """Yield every public function, class, method and property, with its name."""
    for module in MODULES:
        for name in module.__all__:
            found = getattr(module, name)
            if not inspect.isclass(found) and not inspect.isfunction(found):
                continue
            yield f"{module.__name__}.{name}", found
            if not inspect.isclass(found) or issubclass(found, (HoldfastError, Enum)):
                continue
            for attribute, member in vars(found).items():
                if attribute.startswith("_"):
                    continue
                if isinstance(member, (staticmethod, classmethod)):
                    member = member.__func__
                if isinstance(member, (types.FunctionType, property)):
                    yield f"{module.__name__}.{name}.{attribute}", member


PUBLIC = dict(public())


def test_every_public_function_and_class_says_what_it_does() -> None:
    silent = [
        name
        for name, found in PUBLIC.items()
        if not (inspect.isclass(found) and issubclass(found, HoldfastError))
        and not (inspect.getdoc(found) or "").strip()
    ]
    assert not silent


def test_every_error_and_limit_that_is_named_is_there() -> None:
    for name, found in PUBLIC.items():
        text = inspect.getdoc(found) or ""
        for error in re.findall(r"\b[A-Z]\w+Errors?\b", text):
            error = error.removesuffix("s")
            assert hasattr(builtins, error) or error in holdfast.client.__all__, f"{name}: {error}"
        for limit in re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", text):
            assert hasattr(limits, limit), f"{name}: {limit}"


def test_durations_and_sizes_have_their_units_in_their_names() -> None:
    for name, found in PUBLIC.items():
        if not inspect.isfunction(found):
            continue
        for parameter in inspect.signature(found).parameters.values():
            # A share of all is a plain number.
            if "float" in str(parameter.annotation) and parameter.name != "share":
                assert parameter.name.endswith("_seconds"), f"{name}: {parameter.name}"
            if re.search("time|size", parameter.name):
                assert re.search("_seconds$|_bytes$|^start_time$", parameter.name), name


def test_the_guide_says_of_every_error_what_to_do() -> None:
    [table] = re.findall(r"^\| error \| it means .*\n((?:\|.*\n)+)", GUIDE, re.MULTILINE)
    listed = re.findall(r"\w+Error\b", " ".join(row.split("|")[1] for row in table.splitlines()))
    leaves = {
        name for name in exported_errors() if not getattr(holdfast.client, name).__subclasses__()
    }
    # This one is raised itself, and is the base of one that has a row of its own.
    assert set(listed) == leaves | {"ConnectionFailedError"}


def test_every_error_that_may_reach_an_application_is_exported() -> None:
    inside = {code for code, cls in ERRORS_BY_CODE.items() if cls.__name__ not in exported_errors()}
    assert inside == ONLY_INSIDE


def exported_errors() -> set[str]:
    return {name for name in holdfast.client.__all__ if name.endswith("Error")}

"""Errors: the tree, and its way over the wire between peers of different versions."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.protocol import errors, frames
from holdfast.protocol.errors import (
    ERRORS_BY_CODE,
    HoldfastError,
    OperationTimeoutError,
    ProtocolError,
    RequestError,
    StorageError,
    UnavailableError,
    error_from_wire,
    error_to_wire,
)
from tests.support.effort import examples

CLASSES = sorted(ERRORS_BY_CODE.values(), key=lambda cls: cls.code)
#: What fields hold.
SCALARS = (
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.text(max_size=20)
    | st.binary(max_size=20) | st.floats(allow_nan=False)
)  # fmt: skip
VALUES = SCALARS | st.lists(SCALARS, max_size=3)
FIELD_NAMES = st.sampled_from(
    ["what", "name", "reason", "seq", "last_seq", "actual", "expected", "key", "timeout_seconds",
     "self", "code", "fields", "args", "new_field"]
)  # fmt: skip


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.code)
@given(fields=st.dictionaries(FIELD_NAMES, VALUES, max_size=6))
@settings(deadline=None, max_examples=examples(30))
def test_every_error_crosses_the_wire_whatever_its_fields(
    cls: type[HoldfastError], fields: dict[str, object]
) -> None:
    error = cls(**fields)
    code, carried = frames.unpack(frames.pack(error_to_wire(error)))
    again = error_from_wire(code, carried)
    assert type(again) is cls
    assert again.fields == fields
    assert str(again) == str(error)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.code)
def test_every_error_can_be_pickled_and_copied(cls: type[HoldfastError]) -> None:
    error = cls(reason="r", what="w", name="n")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is cls
        assert again.fields == error.fields
        assert str(again) == str(error)


def test_a_newer_peers_field_and_code_are_kept() -> None:
    known = error_from_wire("wrong_last_seq", {"expected": 1, "actual": 2, "hint": "x"})
    assert (known.expected, known.actual, known.hint) == (1, 2, "x")
    unknown = error_from_wire("over_quota", {"quota": 9})
    assert type(unknown) is HoldfastError
    assert error_to_wire(unknown) == ["over_quota", {"quota": 9}]
    assert not unknown.retryable


def test_a_field_that_is_missing_does_not_hide_the_error() -> None:
    error = error_from_wire("wrong_last_seq", {"expected": 1})
    assert "expected=1" in str(error)
    with pytest.raises(AttributeError):
        _ = error.actual


@pytest.mark.parametrize(
    ("parent", "retryable"),
    [
        (RequestError, False),
        (UnavailableError, True),
        (StorageError, False),
        (ProtocolError, False),
    ],
)
def test_each_branch_says_if_a_retry_can_help(parent: type[HoldfastError], retryable: bool) -> None:
    children = [cls for cls in CLASSES if issubclass(cls, parent)]
    assert len(children) > 1
    assert all(cls.retryable is retryable for cls in children)


def test_every_error_belongs_to_exactly_one_branch() -> None:
    branches = (RequestError, UnavailableError, StorageError, ProtocolError)
    for cls in CLASSES:
        if cls is not HoldfastError:
            assert sum(issubclass(cls, branch) for branch in branches) == 1, cls


def test_the_docstring_draws_the_whole_tree() -> None:
    assert errors.__doc__
    drawn = set(re.findall(r"\b(\w+Error)\b", errors.__doc__))
    assert drawn == {cls.__name__ for cls in CLASSES}


def test_a_timeout_is_also_pythons() -> None:
    with pytest.raises(TimeoutError):
        raise OperationTimeoutError(timeout_seconds=1.0, reason="no reply")


@pytest.mark.parametrize(
    ("value", "carried"),
    [
        (1 << 64, "a number of 65 bits"),
        (-(1 << 63) - 1, "a number of 64 bits"),
        (1 << 20_000, "a number of 20001 bits"),
        ("x" * 600, "x" * 509 + "..."),
        ("\ud800", "\\ud800"),
        (b"x" * 600, b"x" * 512),
        (list(range(99)), list(range(16))),
        ([[1], {}], ["a list", "a dict"]),
        (object(), "a object"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_fields_of_an_error_can_be_packed_whatever_they_quote(
    value: object, carried: object
) -> None:
    error = errors.UploadMismatchError(staged_bytes=value, size_bytes=1)
    for packed in (
        frames.pack(error_to_wire(error)),
        frames.pack(frames.error_result(0, error)),
        frames.encode_control_error(error),
    ):
        assert len(packed) < 2048
    assert error_to_wire(error)[1] == {"staged_bytes": carried, "size_bytes": 1}


def test_an_error_has_no_more_fields_than_a_reply_has_room_for() -> None:
    error = RequestError(**{f"field{number}": "x" * 9999 for number in range(99)})
    assert len(frames.pack(error_to_wire(error))) < 16 * 600


@pytest.mark.parametrize("fields", [None, [], {1: "x"}, "x", {b"x": 1}])
def test_fields_that_are_no_map_of_names_are_a_type_error(fields: Any) -> None:
    with pytest.raises(TypeError):
        error_from_wire("busy", fields)

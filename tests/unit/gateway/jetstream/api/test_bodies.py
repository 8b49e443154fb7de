"""JSON from strangers becomes checked fields or the error 10025, and nothing else."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.gateway.jetstream.api import bodies
from holdfast.gateway.jetstream.api.consumer_config import ApiConsumerConfig
from holdfast.gateway.jetstream.api.errors import ApiError
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig


class _Colour(StrEnum):
    RED = "red"


SCHEMA: bodies.Schema = {
    "text": bodies.text,
    "flag": bodies.boolean,
    "small": bodies.int32,
    "large": bodies.int64,
    "count": bodies.uint64,
    "time": bodies.time,
    "texts": bodies.texts,
    "waits": bodies.durations,
    "map": bodies.text_map,
    "colour": bodies.word(_Colour, {"crimson": _Colour.RED}),
    "inside": bodies.nested({"text": bodies.text}, dict),
}


@pytest.mark.parametrize(
    "body",
    [
        *(b"{", b"[", b'{"a":}', b'{"a":1,}', b"{'a':1}", b'{"a":1} x', b"hello", b"nul", b'"\\x"'),
        *(b"NaN", b"Infinity", b"-Infinity", b'{"a":NaN}', b"\xff\xfe{", b"\x00", b'{"a" 1}'),
        b'{"a":' * 100_000,
        b"[" * 100_000,
        b"9" * 100_000,
        b'{"a":-' + b"1" * 5_000 + b"}",
    ],
)
def test_what_is_no_json_is_10025(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        bodies.parse_object(body)
    assert caught.value.err_code == 10025
    assert caught.value.description.startswith("invalid JSON: ")
    assert len(caught.value.description) < 200


@pytest.mark.parametrize("body", [b"[]", b"5", b'"x"', b"true", b"1e999"])
def test_what_is_no_object_is_10025(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        bodies.parse_object(body)
    assert caught.value.err_code == 10025
    assert "cannot unmarshal" in caught.value.description


@pytest.mark.parametrize("body", [b"", b" \r\n", b"{}", b"null"])
def test_nothing_is_an_empty_object(body: bytes) -> None:
    assert bodies.parse_object(body) == {}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(
            ("text", 1),
            ("text", ["a"]),
            ("text", True),
            ("flag", 1),
            ("flag", "true"),
            ("flag", 0.0),
        ),
        *(("large", 1.5), ("large", 1.0), ("large", "1"), ("large", True), ("large", 1 << 63)),
        *(("small", 1 << 31), ("small", -(1 << 31) - 1), ("count", -1), ("count", 1 << 64)),
        *(("time", "x"), ("time", 5), ("texts", "a"), ("texts", [1]), ("texts", {"a": 1})),
        *(("waits", [1, "2"]), ("waits", 5), ("map", []), ("map", {"a": 1}), ("map", {"a": ["b"]})),
        *(("colour", "blue"), ("colour", 1), ("colour", ["red"]), ("colour", "RED")),
        *(("inside", []), ("inside", {"text": 1}), ("inside", {"more": 1}), ("more", 1), ("", 1)),
        ("large", 10**4000),
        ("x" * 100_000, 1),
    ],
)
def test_a_value_of_another_type_and_an_unknown_field_are_10025(field: str, value: Any) -> None:
    with pytest.raises(ApiError) as caught:
        bodies.read(SCHEMA, {field: value})
    assert caught.value.err_code == 10025
    assert len(caught.value.description) < 250


def test_fields_are_read_by_their_names_in_any_case_and_null_is_left_out() -> None:
    fields = bodies.read(
        SCHEMA,
        {
            "TEXT": "a",
            "flag": None,
            "large": -(1 << 63),
            "count": (1 << 64) - 1,
            "waits": [1, 2],
            "colour": "crimson",
            "map": {"a": None},
            "inside": {"text": "b"},
        },
    )
    assert fields == {
        "text": "a",
        "large": -(1 << 63),
        "count": (1 << 64) - 1,
        "waits": (1, 2),
        "colour": _Colour.RED,
        "map": {"a": ""},
        "inside": {"text": "b"},
    }


def test_an_unknown_field_is_named_as_nats_server_names_it() -> None:
    with pytest.raises(ApiError, match='json: unknown field "more"'):
        bodies.read(SCHEMA, {"more": 1})
    assert bodies.read(SCHEMA, {"more": 1, "text": "a"}, strict=False) == {"text": "a"}


def test_text_is_always_encodable() -> None:
    value = bodies.parse(b'{"text":"\\ud800 and \\ud83d\\ude00 \xff"}')
    text = bodies.read(SCHEMA, value)["text"]
    assert text == "\N{REPLACEMENT CHARACTER} and \N{GRINNING FACE} \N{REPLACEMENT CHARACTER}"
    text.encode()


@pytest.mark.parametrize(
    ("body", "empty", "is_object"),
    [
        (b"", True, False),
        (b"{}", True, True),
        (b" { } ", True, True),
        (b"null", False, False),
        (b"[]", False, True),
        (b'{"a":1}', False, True),
        (b"hello", False, False),
        (b"\n\t[", False, True),
        (b"{" * 100_000, False, True),
    ],
)
def test_an_empty_request_and_a_body_of_json_are_told(
    body: bytes, empty: bool, is_object: bool
) -> None:
    assert bodies.is_empty(body) == empty
    assert bodies.is_object(body) == is_object


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
_FIELDS = st.sampled_from(
    sorted({*SCHEMA, *ApiStreamConfig().__slots__, *ApiConsumerConfig().__slots__})
)


@given(st.dictionaries(_FIELDS, _JSON, max_size=6), st.binary(max_size=20))
def test_any_json_and_any_noise_is_read_or_10025(value: dict[str, Any], noise: bytes) -> None:
    for read in (
        lambda: bodies.read(SCHEMA, value),
        lambda: ApiStreamConfig.parse(value),
        lambda: ApiConsumerConfig.parse(value),
        lambda: bodies.parse_object(noise),
        lambda: bodies.parse_object(json.dumps(value).encode()[:30]),
    ):
        try:
            json.dumps(str(read()))
        except ApiError as error:
            assert error.err_code == 10025

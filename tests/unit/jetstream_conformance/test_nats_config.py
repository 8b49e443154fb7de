"""The configuration language of nats-server, as tests of clients write it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.jetstream_conformance.standin.nats_config import ConfigurationError, parse

WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=10)
VALUES = st.recursive(
    st.one_of(st.booleans(), st.integers(-(2**40), 2**40), WORDS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(WORDS, inner, max_size=4)),
    max_leaves=10,
)


def test_blocks_words_sizes_and_comments() -> None:
    text = """
    # for tests
    jetstream: { domain: "test-domain", store_dir = /tmp/x }   // here
    no_auth_user: foo
    accounts {
      A { users: [ {user: foo}, {user: "bar", password: 'b c'} ]
          jetstream: { max_mem: 64MB, max_file: 1k; max_streams: 10, max_stream_bytes: true } }
    }
    port: -1
    """
    assert parse(text) == {
        "jetstream": {"domain": "test-domain", "store_dir": "/tmp/x"},
        "no_auth_user": "foo",
        "accounts": {
            "A": {
                "users": [{"user": "foo"}, {"user": "bar", "password": "b c"}],
                "jetstream": {
                    "max_mem": 64 << 20,
                    "max_file": 1000,
                    "max_streams": 10,
                    "max_stream_bytes": True,
                },
            }
        },
        "port": -1,
    }


def test_a_file_is_included_where_it_is_named() -> None:
    files = {"other.conf": "port: 4333\ninclude third.conf", "third.conf": "debug: on"}
    assert parse("include other.conf\nhttp: 8222", files.__getitem__) == {
        "port": 4333,
        "debug": True,
        "http": 8222,
    }


@settings(max_examples=40)
@given(st.dictionaries(WORDS.filter(lambda key: key != "include"), VALUES, max_size=5))
def test_json_means_itself(value: dict[str, object]) -> None:
    assert parse(json.dumps(value, ensure_ascii=False)) == value


@pytest.mark.parametrize("text", ["a {", "a: [1", 'a: "b', "a: $B", "a: (b)", "}", "a: ]"])
def test_what_is_no_configuration_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse(text)

"""URLs of NATS: user and password are decoded, and shown nowhere."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol.bus.nats_url import NatsUrl, parse_url, url_of_arguments, without_passwords
from holdfast.protocol.errors import InvalidArgumentError

AWKWARD = "p@ss:w/ö%"


def test_user_and_password_are_decoded_and_taken_out() -> None:
    encoded = quote(AWKWARD, safe="")
    url = parse_url(f"tls://a%20da:{encoded}@one:4222,tls://two")
    assert url == NatsUrl(("tls://one:4222", "tls://two"), "a da", AWKWARD)
    assert url.is_secure
    assert AWKWARD not in repr(url)


@pytest.mark.parametrize("text", ["nats://h:4222", "h:4222", "h", "nats://h"])
def test_a_url_may_have_no_user_and_no_scheme(text: str) -> None:
    url = parse_url(text)
    assert url.servers == (text if "://" in text else f"nats://{text}",)
    assert (url.user, url.password, url.token) == (None, None, None)
    assert not url.is_secure
    assert without_passwords(text) == url_of_arguments(text) == text


def test_a_user_without_a_password_is_a_token() -> None:
    url = parse_url("nats://s3%2Fcret@h")
    assert (url.user, url.token) == (None, "s3/cret")
    assert "cret" not in repr(url)


def test_a_password_that_is_not_encoded_is_taken_where_it_is_clear() -> None:
    assert parse_url(f"nats://ada:{AWKWARD}@h:1") == NatsUrl(("nats://h:1",), "ada", AWKWARD)


@pytest.mark.parametrize(
    "text",
    [
        *("nats://a:se,same@h", "nats://a:same,nats://a:same@h", "nats://a:sesame@h:x"),
        *("nats://a:sesame@", "a:sesame@h:1:2", "nats://a:sesame@h,nats://b:sesame@h"),
    ],
)
def test_what_is_no_url_is_refused_without_showing_the_password(text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_url(text)
    assert "same" not in str(caught.value).replace("the same", "")


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("http://127.0.0.1:4280", "its scheme must be one of nats, "),
        ("nats//h:4222,redis://h", "its scheme must be one of nats, "),
        ("nats://h:99999", "write nats://HOST:PORT"),
        ("nats://ada:a/b@h:x", "percent-encode"),
    ],
)
def test_what_is_no_url_is_refused_with_advice_that_fits(text: str, advice: str) -> None:
    with pytest.raises(InvalidArgumentError, match=advice):
        parse_url(text)


@given(
    st.lists(st.text(alphabet="pq:/@,%?#[ö. ", min_size=1), min_size=1, max_size=3),
    st.sampled_from(["nats://", "tls://", ""]),
)
def test_no_part_of_a_password_is_shown_however_it_is_written(
    passwords: list[str], scheme: str
) -> None:
    url = ",".join(f"{scheme}zz:{one}zz@h{n}:1" for n, one in enumerate(passwords))
    assert "z" not in without_passwords(url)
    with pytest.raises(InvalidArgumentError) as caught:
        url_of_arguments(url)
    assert "zz" not in str(caught.value)

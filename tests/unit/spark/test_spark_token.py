"""The option `nats_token` of Spark's data sources."""

from __future__ import annotations

import pytest
from nacl.signing import SigningKey

from holdfast.protocol.access.tokens import sign_token
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.spark.options import read_options, write_options
from tests.support.tokens import a_token

TOKEN, OPERATOR = a_token(), a_token(tenant="*")
NATS = {"nats": "nats://nats:4222", "stream": "orders"}


def text(tenant: str) -> str:
    return sign_token(TOKEN if tenant == "acme" else OPERATOR, SigningKey(bytes(32)))


def test_the_tenant_and_the_inboxes_follow_from_the_token() -> None:
    for options in (NATS, NATS | {"tenant": "acme"}):
        given = options | {"nats_token": text("acme")}
        for connection in (read_options(given).connection, write_options(given).connection):
            assert connection is not None
            assert connection.tenant == "acme"
            assert connection.inboxes.start("acme") == f"_INBOX.acme.{TOKEN.id}"
            assert connection.login.options == {"token": text("acme")}


def test_a_tenant_that_contradicts_the_token_is_refused_on_the_driver() -> None:
    with pytest.raises(InvalidArgumentError, match="contradicts the token"):
        read_options(NATS | {"nats_token": text("acme"), "tenant": "umbrella"})


def test_an_operators_token_takes_the_tenant_that_is_named() -> None:
    given = read_options(NATS | {"nats_token": text("*"), "tenant": "umbrella"})
    assert given.tenant == "umbrella"


def test_a_token_of_natss_own_is_handed_to_nats_alone() -> None:
    given = read_options(NATS | {"nats_token": "sesame"}).connection
    assert given is not None
    assert given.token is None and given.inboxes.own == ""
    assert given.login.options == {"token": "sesame"}

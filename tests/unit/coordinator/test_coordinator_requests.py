"""Whatever is asked of a coordinator becomes a request or a typed error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.coordinator.answering.parsing import (
    _CLIENT_VERBS,
    _CLUSTER_VERBS,
    _OPERATOR_VERBS,
    parse,
)
from holdfast.coordinator.answering.requests import ResolveRequest
from holdfast.protocol.errors import (
    HoldfastError,
    InvalidArgumentError,
    InvalidNameError,
    TooLargeError,
    UnknownOperationError,
)
from holdfast.protocol.frames import encode, encode_control
from holdfast.protocol.limits import MAX_FRAME_OPERATIONS
from holdfast.protocol.names import StoreId

TOO_MANY: list[list[object]] = [[1, "a"]] * (MAX_FRAME_OPERATIONS + 1)


def from_a(**fields: object) -> bytes:
    """What the server `a` asks."""
    return encode_control(server="a", incarnation="1", **fields)


def resolve_payload(*stores: list[object]) -> bytes:
    return encode_control(stores=list(stores))


def test_a_wrong_name_fails_in_its_own_slot() -> None:
    request = parse("acme", "resolve", resolve_payload([1, "ok"], [1, "no name"], [3, "ok"]))
    assert isinstance(request, ResolveRequest)
    good, bad_name, bad_kind = request.stores
    assert good == StoreId("acme", 1, "ok")
    assert isinstance(bad_name, InvalidNameError)
    assert isinstance(bad_kind, InvalidArgumentError)


@pytest.mark.parametrize(
    ("tenant", "verb", "payload", "error"),
    [
        ("_", "resolve", resolve_payload(), UnknownOperationError),
        ("acme", "register", encode_control(server="a", incarnation="1"), UnknownOperationError),
        ("acme", "nonsense", encode_control(), UnknownOperationError),
        ("*", "resolve", resolve_payload(), InvalidNameError),
        ("acme", "resolve", encode_control(stores=5), InvalidArgumentError),
        ("acme", "resolve", encode_control(stores=[[1]]), InvalidArgumentError),
        ("acme", "resolve", resolve_payload(*TOO_MANY), TooLargeError),
        ("_", "register", encode_control(server="a", incarnation="../../x"), InvalidNameError),
        ("_", "register", encode_control(server="a"), InvalidNameError),
        ("_", "drain", encode_control(), InvalidNameError),
        ("acme", "drain", encode_control(server="a"), UnknownOperationError),
        ("acme", "undrain", encode_control(server="a"), UnknownOperationError),
        ("acme", "move", encode_control(server="a"), UnknownOperationError),
        ("_", "move", encode_control(server="a"), InvalidNameError),
        ("acme", "rebalance", encode_control(), UnknownOperationError),
        ("_", "rebalance", encode_control(dry_run=1), InvalidArgumentError),
        ("_", "release", from_a(), InvalidArgumentError),
        ("_", "release", from_a(stores=[], to="../x"), InvalidNameError),
        ("_", "release", from_a(stores=[["acme", 1, "one", "1"]]), InvalidArgumentError),
        ("_", "vacate", from_a(), InvalidArgumentError),
        ("_", "prove", from_a(), InvalidArgumentError),
        ("_", "prove", from_a(number=0), InvalidArgumentError),
        ("acme", "prove", from_a(number=1), UnknownOperationError),
        ("_", "vacate", from_a(number=1 << 63), InvalidArgumentError),
        ("acme", "stores", encode_control(after=["a"]), InvalidArgumentError),
        ("acme", "stores", encode_control(limit=-1), InvalidArgumentError),
        ("acme", "stores", encode_control(prefix=b"x"), InvalidArgumentError),
    ],
)
def test_a_malformed_request_is_refused(
    tenant: str, verb: str, payload: bytes, error: type[HoldfastError]
) -> None:
    with pytest.raises(error):
        parse(tenant, verb, payload)


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text()
    | st.binary()
    | st.floats(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)
_FIELDS = st.dictionaries(
    st.sampled_from(["stores", "server", "incarnation", "kind", "prefix", "after"])
    | st.sampled_from(["limit", "number", "error", "fields"]),
    _VALUES | st.sampled_from(["a", "s1"]),
)
_VERBS = st.sampled_from([*_CLIENT_VERBS, *_CLUSTER_VERBS, *_OPERATOR_VERBS, ""])


@given(
    st.sampled_from(["acme", "_", ""]), _VERBS, st.builds(encode, _FIELDS | _VALUES) | st.binary()
)
def test_whatever_arrives_becomes_a_request_or_a_typed_error(
    tenant: str, verb: str, payload: bytes
) -> None:
    try:
        request = parse(tenant, verb, payload)
    except HoldfastError as error:
        encode({"error": error.code, "fields": error.fields})
    else:
        assert request

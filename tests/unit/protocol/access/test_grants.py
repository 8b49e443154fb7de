"""What a grant allows on which store, and whose writers are whose."""

from __future__ import annotations

import pytest

from holdfast.protocol import frames
from holdfast.protocol.access.grants import KnownRights, TokenGrant
from holdfast.protocol.access.rights import RIGHT_OF_OPERATION, RIGHT_OF_WORD, Right
from holdfast.protocol.access.tokens import Token
from holdfast.protocol.limits import MAX_KNOWN_RIGHTS
from tests.support.tokens import a_token

STREAM, KV = 1, 2


def grant(token: Token) -> TokenGrant:
    return TokenGrant(token, KnownRights(), 0.0)


@pytest.mark.parametrize("number", sorted(RIGHT_OF_OPERATION))
@pytest.mark.parametrize("word", sorted(RIGHT_OF_WORD))
def test_one_right_allows_exactly_its_operations(number: int, word: str) -> None:
    right, needed = RIGHT_OF_WORD[word], RIGHT_OF_OPERATION[number]
    for operations in ([[number]], [[number], [number]], [[frames.BATCH, [[number], [number]]]]):
        refused = grant(a_token(right)).refusal(STREAM, "notes", operations)
        if right is needed:
            assert refused is None
        else:
            assert refused is not None
            missing = ", ".join((needed & ~right).words)
            assert (refused.action, refused.missing) == (missing, missing)
            assert refused.subject == "stream notes"
            assert refused.reason == f"the token does not allow {missing}"


def test_a_pattern_is_for_the_stores_that_match_it() -> None:
    one = grant(a_token(Right.READ, ["project.42.*", "kv:settings"]))
    head = [[frames.HEAD]]
    assert one.refusal(STREAM, "project.42.notes", head) is None
    assert one.refusal(KV, "settings", head) is None
    for kind, name in ((STREAM, "settings"), (STREAM, "project.43.notes"), (7, "project.42.x")):
        refused = one.refusal(kind, name, head)
        if kind == 7:
            assert refused is not None
            continue
        assert refused is not None
        assert refused.reason == "no pattern of the token matches it"
        assert one.unseen(kind, name) is not None
    assert one.unseen(KV, "settings") is None


def test_a_group_needs_the_rights_of_all_its_operations() -> None:
    one = grant(a_token(Right.WRITE | Right.READ))
    batch = [frames.BATCH, [[frames.APPEND, b"x"], [frames.CONSUMER_ACK, 1, []]]]
    refused = one.refusal(STREAM, "notes", [[frames.APPEND, b"x"], batch])
    assert refused is not None
    assert refused.missing == "consume"


def test_destroying_is_a_right_of_its_own() -> None:
    assert grant(a_token(Right.WRITE)).lacks(Right.DESTROY, STREAM, "notes") is not None
    assert grant(a_token(Right.DESTROY)).lacks(Right.DESTROY, STREAM, "notes") is None


def test_a_writer_is_bound_to_its_holder() -> None:
    ada = a_token(subject="ada")
    renewed = a_token(Right.WRITE, subject="ada", expires_at=9)
    others = [
        a_token(subject="bob"),
        a_token(subject="ada", issuer="okta"),
        a_token(),
        a_token(),
    ]
    bound = grant(ada).bound_writer(b"w")
    assert bound == grant(renewed).bound_writer(b"w") == grant(ada).bound_writer(b"w")
    assert len({bound, *(grant(each).bound_writer(b"w") for each in others)}) == 5
    assert grant(ada).bound_writer(b"v") != bound
    assert 1 <= len(bound) <= 32, "a writer's id has at most 32 bytes"


def test_what_is_remembered_is_bounded() -> None:
    known = KnownRights()
    one = TokenGrant(a_token(), known, 0.0)
    for number in range(MAX_KNOWN_RIGHTS + 2):
        one.sees(STREAM, str(number))
    assert len(known) == len(one.masks[STREAM]) == 2
    assert one.sees(STREAM, "0"), "it is compared anew"
    for number in range(100):
        one.bound_writer(str(number).encode())
    assert len(one._writers) <= 16


def test_operators_read_and_configure_the_audit_log_and_do_nothing_else_with_it() -> None:
    operator = grant(a_token(tenant="*"))
    assert operator.refusal(STREAM, "audit", [[frames.APPEND, b"x"]]) is None
    on_system = operator.on_system()
    assert on_system is operator.on_system()
    for number, right in RIGHT_OF_OPERATION.items():
        refused = on_system.refusal(STREAM, "audit", [[number]])
        assert (refused is None) == (right in (Right.READ, Right.CONFIGURE)), number
    assert on_system.lacks(Right.DESTROY, STREAM, "audit") is not None
    assert grant(a_token(Right.LIST, tenant="*")).on_system().lacks(Right.READ, STREAM, "audit")


def test_what_the_audit_log_has_takes_the_path_of_a_refusal_and_is_none() -> None:
    one = grant(a_token(Right.CONFIGURE))
    lacking = one.lacking(STREAM, "notes", [[frames.CONFIGURE, {}]])
    assert lacking
    assert one.refused(lacking, STREAM, "notes") is None
    assert frames.CONFIGURE not in one.allowed
    assert not grant(a_token()).lacking(STREAM, "notes", [[frames.APPEND, b"x"]])

"""Subjects: who speaks where, and that one tenant never reaches another's."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.protocol.errors import InvalidNameError
from holdfast.protocol.names import StoreId, StoreKind, check_tenant
from holdfast.protocol.subjects import CLUSTER_TENANT, Subjects

TENANTS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,20}", fullmatch=True)
NAMES = st.from_regex(r"[A-Za-z0-9_=%@+~,:-]{1,8}(\.[A-Za-z0-9_=%@+~,:-]{1,8}){0,4}", fullmatch=True)
PREFIXES = st.sampled_from(["hf", "my.app.hf", "a-b"])


def matches(pattern: str, subject: str) -> bool:
    """Match as NATS does: `*` is one token."""
    wanted, tokens = pattern.split("."), subject.split(".")
    return len(wanted) == len(tokens) and all(
        one in ("*", other) for one, other in zip(wanted, tokens, strict=True)
    )


@given(PREFIXES, TENANTS, st.sampled_from(StoreKind), NAMES)
@settings(deadline=None, max_examples=200)
def test_a_change_subject_gives_back_its_store(
    prefix: str, tenant: str, kind: StoreKind, name: str
) -> None:
    subjects = Subjects(prefix)
    store = StoreId(tenant, kind, name)
    assert subjects.store_of(subjects.changes(store)) == store
    assert subjects.tenant_of(subjects.changes(store)) == tenant


@given(PREFIXES, TENANTS, TENANTS)
@settings(deadline=None, max_examples=100)
def test_a_request_reaches_its_server_and_no_other(prefix: str, tenant: str, server: str) -> None:
    subjects = Subjects(prefix)
    subject = subjects.server(tenant, server)
    assert matches(subjects.server_pattern(server), subject)
    assert not matches(subjects.server_pattern(server + "x"), subject)
    assert subjects.tenant_of(subject) == tenant


def test_the_stream_and_the_kv_of_one_name_have_two_subjects() -> None:
    subjects = Subjects()
    assert subjects.changes(StoreId("acme", StoreKind.STREAM, "a.b")) == "hf.acme.chg.s.a.b"
    assert subjects.changes(StoreId("acme", StoreKind.KV, "a.b")) == "hf.acme.chg.k.a.b"


def test_no_tenant_can_speak_as_the_cluster() -> None:
    with pytest.raises(InvalidNameError):
        check_tenant(CLUSTER_TENANT)
    subjects = Subjects()
    assert subjects.tenant_of(subjects.cluster("open")) == CLUSTER_TENANT
    # The coordinator listens to both with one subscription and tells them apart by this token.
    assert matches(subjects.coordinator_pattern(), subjects.cluster("open"))
    assert matches(subjects.coordinator_pattern(), subjects.coordinator("acme", "resolve"))


@pytest.mark.parametrize("subject", ["hf.acme.chg.x.a", "hf.acme.chg.s.a b"])
def test_a_subject_of_no_store_is_refused(subject: str) -> None:
    with pytest.raises((InvalidNameError, KeyError)):
        Subjects().store_of(subject)

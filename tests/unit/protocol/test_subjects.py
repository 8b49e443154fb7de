"""Subjects: who speaks where, and that one tenant never reaches another's."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.protocol.errors import InvalidNameError
from holdfast.protocol.names import StoreId, StoreKind, check_tenant
from holdfast.protocol.subjects import CLUSTER_TENANT, Inboxes, Subjects
from tests.support.effort import examples

TENANTS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,20}", fullmatch=True)
NAMES = st.from_regex(
    r"[A-Za-z0-9_=%@+~,:-]{1,8}(\.[A-Za-z0-9_=%@+~,:-]{1,8}){0,4}", fullmatch=True
)
PREFIXES = st.sampled_from(["hf", "my.app.hf", "a-b"])


def matches(pattern: str, subject: str) -> bool:
    """Match as NATS does: `*` is one token."""
    wanted, tokens = pattern.split("."), subject.split(".")
    return len(wanted) == len(tokens) and all(
        one in ("*", other) for one, other in zip(wanted, tokens, strict=True)
    )


@given(PREFIXES, TENANTS, st.sampled_from(StoreKind), NAMES)
@settings(deadline=None, max_examples=examples(200))
def test_a_change_subject_gives_back_its_store(
    prefix: str, tenant: str, kind: StoreKind, name: str
) -> None:
    subjects = Subjects(prefix)
    store = StoreId(tenant, kind, name)
    assert subjects.store_of(subjects.changes(store)) == store
    assert subjects.tenant_of(subjects.changes(store)) == tenant


@given(PREFIXES, TENANTS, TENANTS)
@settings(deadline=None, max_examples=examples(100))
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


TENANT_SUBJECTS = [
    Subjects().server("acme", "p1"),
    Subjects().coordinator("acme", "resolve"),
    Subjects().destroy("acme", "p1"),
]


@pytest.mark.parametrize("subject", TENANT_SUBJECTS)
@pytest.mark.parametrize(
    "reply",
    [
        *("", "reply", "_INBOX", "_INBOX.acme", "_INBOX.acme2.x.1", "_INBOX.acm.x.1"),
        *("_INBOX._.x.1", "_INBOX.x.1", "_inbox.acme.x", "hf.acme.chg.s.notes"),
        *("hf.other.chg.s.notes", "hf._.hb", "hf.acme.srv.p1", "_INBOX.acme.*", "_INBOX.acme.>"),
        *("_INBOX.acme.a b", "_INBOX.acme.a\tb", "_INBOX.acme.a\x0bb"),
        *("_INBOX.acme.a\r\nPUB hf._.hb 0\r\n", "_INBOX.acme.\u00e4", "_INBOX.acme.\udcff"),
        "_INBOX.acme." + "x" * 1024,
    ],
)
def test_a_tenants_requests_are_answered_on_its_own_inboxes_only(subject: str, reply: str) -> None:
    assert not Subjects().may_answer(subject, reply)
    for good in ("_INBOX.acme.x7Qd2.1", "_INBOX.acme.ada.f-3_%.12"):
        assert Subjects().may_answer(subject, good)
        assert not Subjects().may_answer(subject.replace("acme", "other"), good)
        assert not Subjects().may_answer(Subjects().cluster("open"), good)


def test_the_clusters_requests_are_answered_on_the_clusters_inboxes() -> None:
    subjects = Subjects("a.b")
    for subject in (subjects.cluster("open"), subjects.control("p1"), subjects.operator("p1")):
        assert subjects.may_answer(subject, "_INBOX._.x.1")
        assert not subjects.may_answer(subject, "_INBOX.acme.x.1")


def test_servers_reply_under_the_root_that_they_were_told() -> None:
    subjects = Subjects(inboxes="_REPLIES")
    for subject in TENANT_SUBJECTS:
        for inboxes in ("_REPLIES.acme", "_REPLIES.acme.ada"):
            inbox = Inboxes.parse(inboxes, "acme").start("acme")
            assert subjects.may_answer(subject, f"{inbox}.x.1")
        assert not subjects.may_answer(subject, "_INBOX.acme.x.1")
        assert not subjects.may_answer(subject, "_REPLIES.other.x.1")


def test_a_connection_has_a_part_of_its_tenants_inboxes_and_all_of_the_others() -> None:
    inboxes = Inboxes.parse("_REPLIES.acme.ada.7", "acme")
    assert inboxes.start("acme") == "_REPLIES.acme.ada.7"
    assert inboxes.start("_") == "_REPLIES._"
    assert inboxes == Inboxes("_REPLIES", "acme", "ada.7")
    assert Inboxes.parse(None, "acme") == Inboxes.parse("_INBOX.acme", "acme")


def test_no_prefix_lets_a_reply_pass_for_something_of_the_clusters() -> None:
    subjects = Subjects("_INBOX.acme")
    assert not subjects.may_answer(subjects.server("acme", "p1"), "_INBOX.acme.acme.chg.s.x")


def test_the_requests_of_a_token_name_it_and_are_answered_on_its_inboxes_alone() -> None:
    subjects, plain = Subjects("my.hf", "f" * 32), Subjects("my.hf")
    for subject in (
        subjects.server("acme", "p1"),
        subjects.destroy("acme", "p1"),
        subjects.coordinator("acme", "resolve"),
    ):
        assert plain.grant_of(subject) == "f" * 32
        assert plain.grant_of(subject.rpartition(".")[0]) == ""
        assert plain.may_answer(subject, f"_INBOX.acme.{'f' * 32}.1")
        for other in ("_INBOX.acme.1", f"_INBOX.acme.{'e' * 32}.1", f"_INBOX.b.{'f' * 32}.1"):
            assert not plain.may_answer(subject, other)
    assert plain.grant_of(plain.changes(StoreId("acme", StoreKind.STREAM, "srv.a"))) == ""


def test_who_tells_the_audit_log_something_is_in_the_subject_and_who_asks_in_the_inbox() -> None:
    grant = "g" * 32
    server, operator = Subjects("my.hf"), Subjects("my.hf", grant)
    assert (server.audit(), operator.audit()) == ("my.hf._.audit", f"my.hf._.audit.{grant}")
    assert (server.grant_of(server.audit()), server.grant_of(operator.audit())) == ("", grant)
    assert server.is_audit(server.audit()) and server.is_audit(operator.audit())
    for subject in (server.cluster("audit"), "my.hf.acme.audit", "my.hf._.auditor", "hf._.audit"):
        assert not server.is_audit(subject)
    assert server.may_answer(operator.audit(), f"_INBOX._.{grant}.1")
    assert not server.may_answer(operator.audit(), f"_INBOX._.{'h' * 32}.1")
    assert server.asker_of(f"_INBOX._.{grant}.x7Qd2.1") == grant
    # Without a token there is nothing between the tenant and what the client made up.
    assert server.asker_of(f"_INBOX._.{'x' * 22}.1") == ""
    assert server.asker_of("_INBOX._.short.x7Qd2.1") == ""

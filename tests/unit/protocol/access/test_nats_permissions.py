"""The NATS permissions of a token."""

from __future__ import annotations

from holdfast.protocol.access.nats_permissions import permissions_of
from holdfast.protocol.access.rights import ALL_RIGHTS, Right
from holdfast.protocol.access.tokens import Token, new_token
from holdfast.protocol.names import matches
from holdfast.protocol.subjects import Subjects


def token(tenant: str, rights: Right, *stores: str) -> Token:
    return new_token(issuer="cluster", tenant=tenant, stores=stores, rights=rights, created_at=0)


def test_a_reader_may_ask_in_its_own_name_and_follow_what_it_may_read() -> None:
    reader = token("acme", Right.READ, "project.*", "kv:settings", ">")
    allowed = permissions_of(reader, "hf")
    assert allowed.publish == (f"hf.acme.srv.*.{reader.id}", f"hf.acme.coord.*.{reader.id}")
    assert allowed.subscribe == (
        f"_INBOX.acme.{reader.id}.>",
        "hf.acme.chg.s.project.*",
        "hf.acme.chg.k.project.*",
        "hf.acme.chg.m.project.*",
        "hf.acme.chg.k.settings",
        "hf.acme.chg.m.settings",
        "hf.acme.chg.s.>",
        "hf.acme.chg.k.>",
        "hf.acme.chg.m.>",
    )


def test_who_may_not_read_may_not_follow() -> None:
    writer = token("acme", ALL_RIGHTS & ~Right.READ, ">")
    assert permissions_of(writer, "hf").subscribe == (f"_INBOX.acme.{writer.id}.>",)


def test_only_who_may_destroy_may_publish_there() -> None:
    for rights in (ALL_RIGHTS, ALL_RIGHTS & ~Right.DESTROY):
        published = permissions_of(token("acme", rights, ">"), "hf").publish
        assert any(".destroy." in each for each in published) == (Right.DESTROY in rights)


def test_no_token_of_a_tenant_reaches_another_one_or_the_cluster() -> None:
    allowed = permissions_of(token("acme", ALL_RIGHTS, ">"), "hf")
    other = Subjects("hf", "f" * 32)
    for subject in (
        *(other.server("umbrella", "p1"), other.coordinator("umbrella", "resolve")),
        *(other.destroy("umbrella", "p1"), other.server("acme", "p1")),
        *(other.cluster("drain"), other.operator("p1"), other.heartbeat(), other.control("p1")),
        *("hf.acme.srv.p1", "hf.acme.coord.resolve", "hf.umbrella.chg.s.notes"),
        *("_INBOX.umbrella.x.1", "_INBOX._.x.1", "_INBOX.acme.other.1"),
    ):
        assert not any(matches(each, subject) for each in (*allowed.publish, *allowed.subscribe))


def test_an_operator_reaches_every_tenant_and_the_cluster_in_its_own_name() -> None:
    operator = token("*", ALL_RIGHTS, ">")
    allowed = permissions_of(operator, "hf")
    own = Subjects("hf", operator.id)
    for subject in (own.server("acme", "p1"), own.cluster("drain"), own.operator("p1")):
        assert any(matches(each, subject) for each in allowed.publish), subject
    assert not any(matches(each, "hf.acme.srv.p1") for each in allowed.publish)
    assert any(matches(each, "hf.acme.chg.s.notes") for each in allowed.subscribe)


def test_an_operator_with_less_than_everything_commands_nobody() -> None:
    """Drains and jobs on stores name no token, so nobody but NATS can refuse them."""
    own = Subjects("hf")
    commands = [own.cluster("drain"), own.cluster("undrain"), own.operator("p1")]
    listings = [own.cluster("tenants"), own.cluster("tenant")]
    for rights, stores, may_list in (
        (ALL_RIGHTS & ~Right.DESTROY, ">", True),
        (ALL_RIGHTS, "project.*", True),
        (Right.LIST, ">", True),
        (Right.READ | Right.WRITE, ">", False),
    ):
        publish = permissions_of(token("*", rights, stores), "hf").publish
        assert not any(matches(each, subject) for each in publish for subject in commands)
        listed = [any(matches(each, subject) for each in publish) for subject in listings]
        assert listed == [may_list, may_list]

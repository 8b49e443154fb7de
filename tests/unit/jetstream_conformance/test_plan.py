"""What the stand-in of nats-server starts, for the options and files that tests of clients give."""

from __future__ import annotations

from typing import Any

import pytest

from tests.jetstream_conformance.standin.arguments import Arguments, parse_arguments
from tests.jetstream_conformance.standin.plan import Plan, UnsupportedError, plan_of


def planned(*arguments: str, configuration: str = "") -> Plan:
    plan = plan_of(parse_arguments(arguments), lambda name: configuration)
    assert plan is not None
    return plan


def real(plan: Plan) -> dict[str, Any]:
    return plan.configuration_with(7422, "/ports")


def test_the_options_of_nats_py() -> None:
    given = ("-p", "4222", "-m", "8222", "-a", "127.0.0.1", "-js", "-sd=/tmp/tmpx")
    assert parse_arguments(given) == Arguments(
        port=4222,
        http_port=8222,
        jetstream=True,
        store_dir="/tmp/tmpx",
        others=("-a", "127.0.0.1"),
    )


def test_the_options_of_the_next_python_client() -> None:
    given = ("--port", "-1", "--jetstream", "--store_dir", "/tmp/x", "--server_name", "n")
    assert parse_arguments(given) == Arguments(
        port=-1, jetstream=True, store_dir="/tmp/x", others=("--server_name", "n")
    )


def test_a_server_without_jetstream_is_left_as_it_is() -> None:
    assert plan_of(parse_arguments(("-p", "4222")), lambda name: "") is None
    config = ("-c", "x.conf")
    assert plan_of(parse_arguments(config), lambda name: "jetstream: disabled") is None


def test_a_plain_server_needs_no_login() -> None:
    plan = planned("-js", "-sd", "/tmp/store", "-p", "4333")
    assert (plan.port, plan.login, plan.leaf_login, plan.store) == (4333, "", "", "/tmp/store")
    assert real(plan) == {"leafnodes": {"listen": "127.0.0.1:7422"}}


def test_the_limits_of_an_account_are_kept_and_jetstream_is_taken_out() -> None:
    plan = planned(
        *("-js", "-sd=/tmp/store", "--config", "limits.conf"),
        configuration="""
            jetstream: { domain: "d" }
            no_auth_user: "foo"
            accounts: { A { users: [{ user: "foo" }], jetstream: { max_streams: 10 } }, B { } }
        """,
    )
    assert plan.jetstream == {"domain": "d", "max_streams": 10}
    assert plan.login == plan.leaf_login == "holdfast:holdfast@"
    found = real(plan)
    assert "jetstream" not in found
    assert found["accounts"]["A"] == {
        "users": [{"user": "foo"}, {"user": "holdfast", "password": "holdfast"}]
    }
    [leaf] = found["leafnodes"]["authorization"]["users"]
    assert leaf == {"user": "holdfast", "password": "holdfast", "account": "A"}


def test_a_configuration_of_nats_js() -> None:
    plan = planned(
        *("-c", "x.conf"),
        configuration="""
            jetstream { store_dir: "/tmp/js" }
            port: -1
            ports_file_dir: /tmp
            leafnodes { listen: "127.0.0.1:-1" }
            authorization { user: u, password: p }
        """,
    )
    assert (plan.store, plan.port, plan.login) == ("/tmp/js", -1, "u:p@")
    assert real(plan)["ports_file_dir"] == "/ports"
    assert real(plan)["leafnodes"]["listen"] == "127.0.0.1:7422"


def test_two_accounts_with_jetstream_are_refused() -> None:
    with pytest.raises(UnsupportedError):
        planned("-c", "x", configuration="accounts { A {jetstream: on}, B {jetstream: on} }")

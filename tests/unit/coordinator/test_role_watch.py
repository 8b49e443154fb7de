"""The log says which roles no live server has, and nothing where no server lives."""

from __future__ import annotations

import pytest

from holdfast.coordinator.decisions.member import MemberView
from holdfast.coordinator.role_watch import RoleWatch
from holdfast.protocol.control import ServerState
from holdfast.protocol.work.roles import ALL_ROLES, Role, Roles


def member(state: ServerState, roles: Roles) -> MemberView:
    return MemberView(
        "s1",
        "i1",
        state,
        heartbeat_age_seconds=0.0,
        takes_new_stores=True,
        open_stores=0,
        log_bytes=0,
        operations_per_second=0.0,
        roles=roles,
    )


def missing(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says of missing roles; that it is over may be said, too."""
    return [each for each in caplog.messages if each.startswith("coordinator.role_missing")]


def test_a_role_is_missing_only_where_a_server_with_another_one_lives(
    caplog: pytest.LogCaptureFixture,
) -> None:
    members: list[MemberView] = []
    watch = RoleWatch(lambda: members)
    watch.look()
    members[:] = [member(ServerState.DEAD, ALL_ROLES)]
    watch.look()
    assert not missing(caplog)
    members[:] = [member(ServerState.LIVE, (Role.PERSIST,))]
    watch.look()
    [said] = missing(caplog)
    assert "role=tier" in said
    caplog.clear()
    members[:] = [member(ServerState.LIVE, ALL_ROLES)]
    watch.look()
    assert not missing(caplog)

"""Mirrors and sources as they are configured: what is told again, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.gateway.jetstream.api.checks.source_checks import check_origins
from holdfast.gateway.jetstream.api.checks.stream_checks import check_create, check_update
from holdfast.gateway.jetstream.api.errors import ApiError
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig

FULL = {
    "name": "O",
    "opt_start_seq": 3,
    "opt_start_time": "2026-01-02T03:04:05.006Z",
    "subject_transforms": [{"src": "a.*", "dest": "b.$1"}, {"src": "c", "dest": ""}],
}


def created(**config: Any) -> ApiStreamConfig:
    return check_create(ApiStreamConfig.parse({"name": "S", **config}))


def test_a_configuration_is_told_as_it_was_asked_for_and_read_again() -> None:
    for config in (created(mirror=FULL), created(sources=[FULL, {"name": "P"}], subjects=["s"])):
        assert ApiStreamConfig.from_json(config.to_json()) == config
    assert created(mirror=FULL).to_json()["mirror"] == FULL
    assert created(sources=[FULL]).to_json()["sources"] == [FULL]


def test_copies_have_no_subjects_and_no_window_of_their_own_unless_asked_for() -> None:
    for config in (created(mirror={"name": "O"}), created(sources=[{"name": "O"}])):
        assert "subjects" not in config.to_json()
        assert "duplicate_window" not in config.to_json()


def test_a_copy_says_where_it_comes_from_in_nats_servers_words() -> None:
    (plain,) = created(sources=[{"name": "O"}]).sources
    assert plain.header(7, "a.b") == "O 7 > > a.b"
    (moved,) = created(sources=[FULL]).sources
    assert moved.filters == ("a.*", "c")
    assert moved.header(7, "a.x") == "O 7 a.*\fc b.$1\f> a.x"
    assert moved.transformer()("a.x") == "b.x"
    assert moved.transformer()("c") == "c"


O: dict[str, Any] = {"name": "O"}
TWO = [{"src": "a.*", "dest": "b.$1"}, {"src": "a.b", "dest": "c"}]


@pytest.mark.parametrize(
    ("asked", "err_code"),
    [
        ({"mirror": O, "subjects": ["x"]}, 10034),
        ({"mirror": O, "sources": [O]}, 10031),
        ({"mirror": O, "first_seq": 2}, 10143),
        ({"mirror": O, "allow_msg_counter": True}, 10173),
        ({"mirror": O, "allow_atomic": True}, 10198),
        ({"mirror": O, "allow_batched": True}, 10209),
        ({"mirror": O, "allow_msg_schedules": True}, 10186),
        ({"mirror": O, "subject_delete_marker_ttl": 10**9}, 10052),
        ({"mirror": {"name": "a.b"}}, 10142),
        ({"mirror": O | {"filter_subject": "a", "subject_transforms": TWO}}, 10150),
        ({"mirror": O | {"subject_transforms": [{"src": "a..b"}]}}, 10151),
        ({"mirror": O | {"subject_transforms": TWO}}, 10152),
        ({"mirror": O | {"subject_transforms": [{"src": "a", "dest": "$1"}]}}, 10154),
        ({"mirror": O | {"consumer": {"name": "c"}}}, 10213),
        ({"sources": [{"name": ""}]}, 10141),
        ({"sources": [O, O]}, 10140),
        ({"sources": [O], "allow_msg_schedules": True}, 10187),
        ({"sources": [O | {"filter_subject": "a", "subject_transforms": TWO}]}, 10144),
        ({"sources": [O | {"subject_transforms": [{"src": "a..b"}]}]}, 10145),
        ({"sources": [O | {"subject_transforms": [{"src": "a", "dest": "$1"}]}]}, 10146),
        ({"sources": [O | {"subject_transforms": TWO}]}, 10147),
        ({"sources": [O | {"consumer": {"name": "c", "deliver_subject": "*"}}]}, 10215),
        ({"sources": [{"name": f"O{number}"} for number in range(257)]}, 10052),
    ],
)
def test_what_nats_server_refuses_is_refused_with_its_number(
    asked: dict[str, Any], err_code: int
) -> None:
    with pytest.raises(ApiError) as caught:
        created(**asked)
    assert caught.value.err_code == err_code


def test_a_mirror_is_not_changed_but_it_may_become_a_usual_stream() -> None:
    mirror = created(mirror=O)
    with pytest.raises(ApiError) as caught:
        check_update(mirror, ApiStreamConfig.parse({"name": "S", "mirror": {"name": "P"}}))
    assert caught.value.err_code == 10055
    with pytest.raises(ApiError) as caught:
        check_update(created(), ApiStreamConfig.parse({"name": "S", "mirror": O}))
    assert caught.value.err_code == 10055
    promoted = check_update(mirror, ApiStreamConfig.parse({"name": "S"}))
    assert promoted.subjects == ("S",)


def test_cycles_are_refused_also_behind_mirrors_and_unless_no_subject_comes_back() -> None:
    def stream(name: str, **config: Any) -> ApiStreamConfig:
        return check_create(ApiStreamConfig.parse({"name": name, **config}))

    def check(config: ApiStreamConfig, *others: ApiStreamConfig) -> None:
        check_origins(config, {each.name: each for each in others}.get)

    one = stream("A", subjects=["a"], sources=[{"name": "M"}])
    two = stream("M", mirror={"name": "B"})
    cycle = stream("B", subjects=["b"], sources=[{"name": "A"}])
    for config, others in ((cycle, (one, two)), (stream("A", mirror={"name": "A"}), ())):
        with pytest.raises(ApiError, match="detected cycle"):
            check(config, *others)
    check(one, two)
    # Neither gets what the other has from it.
    left = stream("L", subjects=["l.>"], sources=[{"name": "R", "filter_subject": "r.>"}])
    right = stream("R", subjects=["r.>"], sources=[{"name": "L", "filter_subject": "l.>"}])
    check(left, right)

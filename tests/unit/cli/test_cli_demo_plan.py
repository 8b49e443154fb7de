"""The demo's plan: what it stores, what it skips, and under which names."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.demo.git_history import Commit, FileVersion
from holdfast.cli.demo.plan import DemoPlan, DemoStep, Skipped, blob_id, make_plan, stream_name
from holdfast.protocol.limits import MAX_NAME_BYTES, MAX_VALUE_BYTES
from holdfast.protocol.names import check_store

REPOSITORY = Path("/src/my.project")


def version(number: int, path: str | bytes, status: str = "M", blob: str = "b1") -> FileVersion:
    raw = path if isinstance(path, bytes) else path.encode()
    mode, blob = ("", "") if status == "D" else ("100644", blob)
    return FileVersion(Commit(f"c{number}", "Ada", "2026-01-02T03:04:05Z"), raw, status, mode, blob)


def test_each_path_is_a_stream_and_each_version_a_message() -> None:
    versions = [version(1, "a"), version(1, "b"), version(2, "a", blob="b2")]
    plan = make_plan(REPOSITORY, versions, {"b1": 3, "b2": 4}, 2)
    assert [(one.path, len(one.messages)) for one in plan.files] == [("a", 2), ("b", 1)]
    assert plan.steps == [DemoStep(0, 1), DemoStep(1, 1), DemoStep(0, 2)]
    assert plan.message_count == 3
    assert plan.commit_count == 2
    assert plan.content_bytes == 10
    assert plan.latest() == {"a": "b2", "b": "b1"}
    assert plan.files[0].messages[1].headers == {
        "commit": "c2",
        "author": "Ada",
        "time": "2026-01-02T03:04:05Z",
        "path": "a",
        "status": "M",
        "mode": "100644",
    }


def test_a_deletion_is_a_message_and_takes_the_path_out_of_the_kv() -> None:
    plan = make_plan(REPOSITORY, [version(1, "a"), version(2, "a", "D")], {"b1": 3}, 1)
    assert plan.files[0].messages[1].blob == ""
    assert plan.files[0].messages[1].headers["status"] == "D"
    assert plan.latest() == {}


def test_a_version_that_is_too_large_is_skipped_and_counted() -> None:
    versions = [version(1, "a"), version(2, "a", blob="big"), version(3, "b", blob="limit")]
    sizes = {"b1": 3, "big": MAX_VALUE_BYTES + 1, "limit": MAX_VALUE_BYTES}
    plan = make_plan(REPOSITORY, versions, sizes, 1)
    assert plan.skipped == {Skipped.TOO_LARGE: 1}
    assert plan.message_count == 2
    assert plan.steps[1] == DemoStep(0, 0)
    assert plan.latest() == {"b": "limit"}


def test_a_version_that_the_clone_lacks_is_skipped_and_counted() -> None:
    plan = make_plan(REPOSITORY, [version(1, "a", blob="absent")], {}, 1)
    assert plan.skipped == {Skipped.NOT_IN_CLONE: 1}
    assert plan.message_count == 0


def test_a_path_that_is_no_text_is_skipped_and_counted() -> None:
    plan = make_plan(REPOSITORY, [version(1, b"\xff"), version(1, "a")], {"b1": 3}, 1)
    assert plan.skipped == {Skipped.PATH_IS_NOT_TEXT: 1}
    assert [one.path for one in plan.files] == ["a"]


def test_all_versions_of_a_file_belong_to_one_writer_and_the_load_is_even() -> None:
    versions = [version(n, f"f{n % 10}") for n in range(100)]
    plan = make_plan(REPOSITORY, versions, {"b1": 1}, 5)
    loads = [0] * 5
    for file, writer in zip(plan.files, plan.writers, strict=True):
        loads[writer] += len(file.messages)
    assert loads == [20] * 5


def test_a_saved_plan_is_the_same_when_loaded(tmp_path: Path) -> None:
    plan = make_plan(REPOSITORY, [version(1, "ä b"), version(2, "ä b", "D")], {"b1": 3}, 3)
    plan.save(tmp_path / "plan")
    loaded = DemoPlan.load(tmp_path / "plan")
    assert (loaded.files, loaded.steps, loaded.writers) == (plan.files, plan.steps, plan.writers)
    assert (loaded.prefix, loaded.kv, loaded.repository) == (plan.prefix, plan.kv, plan.repository)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), unique=True))
def test_every_path_has_a_valid_name_of_its_own(paths: list[str]) -> None:
    names = [check_store(stream_name("demo.repository.", path)) for path in paths]
    assert len(set(names)) == len(names)


def test_long_paths_that_differ_at_the_end_have_names_of_their_own() -> None:
    names = {stream_name("demo.r.", "d/" * 300 + end) for end in "abc"}
    assert len(names) == 3
    assert {len(name) for name in names} == {MAX_NAME_BYTES}


def test_blob_ids_are_git_s_own() -> None:
    assert blob_id(b"x", "0" * 40) == "c1b0730e0133447badcfd47fd144e254807b06e1"
    empty_sha256 = "473a0f4c3be8a93681a267e3b1e9a7dcda1185436fe141f7749120a303721813"
    assert blob_id(b"", "0" * 64) == empty_sha256

"""Keys as files: every key has one file of its own, inside, and lists come in order."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.protocol.errors import InvalidArgumentError
from holdfast.shared_fs.bucket.bucket_backend import check_key
from holdfast.shared_fs.bucket.bucket_files import names_of, object_path, walk
from tests.support.effort import examples

OBJECTS = Path("/objects")


def valid(key: str) -> bool:
    try:
        check_key(key)
    except InvalidArgumentError:
        return False
    return True


#: Short keys that collide easily, and long parts of dots and capitals that are cut.
KEYS = st.one_of(
    st.text(st.sampled_from("abAB./+=%-_ é🐟"), min_size=1, max_size=8),
    st.lists(
        st.builds(lambda text, count: text * count, st.sampled_from("aA.é"), st.integers(1, 260)),
        min_size=1,
        max_size=3,
    ).map("/".join),
).filter(valid)


@given(key=KEYS)
def test_no_key_names_a_file_elsewhere_or_a_name_too_long(key: str) -> None:
    path = object_path(OBJECTS, key)
    assert path.is_relative_to(OBJECTS)
    for name in path.relative_to(OBJECTS).parts:
        assert name not in (".", "..") and len(name) <= 201
        assert name == name.lower() and name.isascii()


@given(one=KEYS, other=KEYS)
def test_two_keys_never_share_a_file(one: str, other: str) -> None:
    assert (object_path(OBJECTS, one) == object_path(OBJECTS, other)) == (one == other)


@given(keys=st.sets(KEYS, max_size=12), prefix=st.text("ab./-A", max_size=3), after=KEYS)
@settings(max_examples=examples(60), deadline=None)
def test_a_walk_finds_what_sorting_all_keys_would(keys: set[str], prefix: str, after: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        objects = Path(name)
        for key in keys:
            path = object_path(objects, key)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        found = list(walk(objects, b"", prefix.encode(), after.encode()))
        assert found == [
            (key.encode(), object_path(objects, key))
            for key in sorted(keys, key=str.encode)
            if key.startswith(prefix) and key.encode() > after.encode()
        ]


@pytest.mark.parametrize("part", ["a" * 200 + "..", "." * 300, "x" * 199 + "." * 30])
def test_no_piece_of_a_long_part_is_a_step_upwards(part: str) -> None:
    assert not any(name.startswith(".") for name in names_of(part))

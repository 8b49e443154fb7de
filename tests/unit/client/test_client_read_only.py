"""Nested values of live copies cannot be changed in place, and are otherwise what they are."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.client.live.read_only import read_only
from holdfast.protocol.frames import pack, unpack

PLAIN: Any = {"votes": {"ada": 1}, "tags": ["red", {"deep": [1]}], "text": "kelp", "none": None}


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value["votes"].__setitem__("bob", 2),
        lambda value: value["votes"].__delitem__("ada"),
        lambda value: value["votes"].update(bob=2),
        lambda value: value["votes"].setdefault("bob", 2),
        lambda value: value["votes"].pop("ada"),
        lambda value: value["votes"].popitem(),
        lambda value: value["votes"].clear(),
        lambda value: value["votes"].__ior__({"bob": 2}),
        lambda value: value["tags"].append("blue"),
        lambda value: value["tags"].__setitem__(0, "blue"),
        lambda value: value["tags"].__delitem__(0),
        lambda value: value["tags"].extend(["blue"]),
        lambda value: value["tags"].insert(0, "blue"),
        lambda value: value["tags"].__iadd__(["blue"]),
        lambda value: value["tags"].__imul__(2),
        lambda value: value["tags"].sort(),
        lambda value: value["tags"].reverse(),
        lambda value: value["tags"].remove("red"),
        lambda value: value["tags"].pop(),
        lambda value: value["tags"].clear(),
        lambda value: value["tags"][1]["deep"].append(2),
    ],
)
def test_a_change_in_place_says_what_to_do(change: Callable[[Any], object]) -> None:
    value = read_only(PLAIN)
    with pytest.raises(TypeError, match="assign that"):
        change(value)
    assert value == PLAIN


def test_it_is_otherwise_what_it_is_and_copies_can_be_changed() -> None:
    value = read_only(PLAIN)
    assert value == PLAIN
    assert isinstance(value["votes"], dict)
    assert isinstance(value["tags"], list)
    assert json.dumps(value) == json.dumps(PLAIN)
    assert unpack(pack(value)) == PLAIN
    for again in (copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert again == PLAIN
    deep = copy.deepcopy(value)
    deep["votes"]["bob"] = 2
    deep["tags"][1]["deep"].append(2)
    assert value == PLAIN
    shallow = {**value["votes"], "bob": 2}
    assert (value["votes"] | {"bob": 2}) == shallow == dict(value["votes"], bob=2)
    assert [*value["tags"], "blue"] == value["tags"] + ["blue"]
    assert copy.copy(value["tags"]) == PLAIN["tags"]
    assert read_only(b"bytes") == b"bytes"

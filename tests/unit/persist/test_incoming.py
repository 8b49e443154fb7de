"""A group that makes no sense is refused alone, whatever else is in its frame."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.write_path.incoming import take_apart
from holdfast.protocol import frames
from holdfast.protocol.errors import InvalidNameError, MalformedFrameError

HUGE = (1 << 63) - 1
BAD_GROUPS: dict[str, tuple[Any, ...]] = {
    "no such kind": (3, "a", 1, 1, 0, [[1, b"v"]]),
    "a huge kind": (HUGE, "a", 1, 1, 0, [[1, b"v"]]),
    "an empty name": (1, "", 1, 1, 0, [[1, b"v"]]),
    "a path": (1, "../../etc/passwd", 1, 1, 0, [[1, b"v"]]),
    "a wildcard": (1, "a.*", 1, 1, 0, [[1, b"v"]]),
    "a long name": (1, "a" * 201, 1, 1, 0, [[1, b"v"]]),
    "writes and reads": (1, "a", 1, 1, 0, [[1, b"v"], [36]]),
    "reads with a counter": (1, "a", 1, 1, 0, [[36]]),
    "writes without one": (1, "a", 0, 0, 0, [[1, b"v"]]),
}


@pytest.mark.parametrize("what", BAD_GROUPS)
def test_a_group_that_makes_no_sense_is_refused_and_its_neighbour_taken(what: str) -> None:
    good = (1, "good", 1, 1, 0, [[1, b"v"]])
    payload = frames.encode_request(b"w", [BAD_GROUPS[what], good])
    incoming = take_apart("acme", payload, "reply", OpenStores())
    [(index, error)] = incoming.refusals
    assert (index, type(error)) in [(0, InvalidNameError), (0, MalformedFrameError)]
    [arrival] = incoming.arrivals
    assert (arrival.position, arrival.store.name) == (1, "good")

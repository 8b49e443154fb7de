"""Garbage collection without long pauses: what a pass looks at, and how often it looks at all."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from holdfast.protocol.serving import garbage
from holdfast.protocol.serving.garbage import (
    MAX_PAUSE_SECONDS,
    YOUNG_OBJECTS,
    CircleCollector,
)


class Node:
    """Refers to itself, so that counting references does not free it."""

    def __init__(self) -> None:
        self.me: Node | None = self


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def collection(clock: Clock) -> Iterator[CircleCollector]:
    was_enabled, before = gc.isenabled(), gc.get_threshold()
    found = CircleCollector(clock)
    found.begin()
    gc.enable()
    yield found
    found.end()
    gc.set_threshold(*before)
    if not was_enabled:
        gc.disable()


@pytest.fixture
def pause(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each pass over everything takes, by the clock."""
    seconds: list[float] = []

    def collect() -> int:
        clock.now += seconds[-1]
        gc.freeze()
        return 0

    monkeypatch.setattr(garbage.gc, "collect", collect)
    return seconds


def test_new_circles_are_freed_while_the_process_works(collection: CircleCollector) -> None:
    node = weakref.ref(Node())
    kept = [[number] for number in range(2 * YOUNG_OBJECTS)]
    assert node() is None
    assert len(kept) == 2 * YOUNG_OBJECTS


def test_what_survives_a_pass_is_not_looked_at_again(collection: CircleCollector) -> None:
    kept = [[number] for number in range(50 * YOUNG_OBJECTS)]
    looked_at = [len(gc.get_objects(generation)) for generation in range(3)]
    assert sum(looked_at) < 3 * YOUNG_OBJECTS
    assert len(kept) == 50 * YOUNG_OBJECTS


def test_an_old_circle_is_found_by_a_pass_over_everything(
    collection: CircleCollector, clock: Clock
) -> None:
    old = Node()
    node = weakref.ref(old)
    gc.collect()
    del old
    gc.collect()
    # It was put aside while somebody had it.
    assert node() is not None
    clock.now += 24 * 3600
    assert collection.tend()
    assert node() is None


def test_passes_over_everything_take_a_ten_thousandth_of_the_time(
    collection: CircleCollector, clock: Clock, pause: list[float]
) -> None:
    pause.append(0.5)
    clock.now += 24 * 3600
    assert collection.tend()
    clock.now += 4990
    assert not collection.tend()
    clock.now += 20
    assert collection.tend()
    pause.append(0.001)
    clock.now += 5010
    assert collection.tend()
    # Never more often than once a minute.
    clock.now += 50
    assert not collection.tend()
    clock.now += 20
    assert collection.tend()


def test_a_pass_for_which_a_server_would_count_as_dead_is_left_out(
    collection: CircleCollector, clock: Clock, pause: list[float]
) -> None:
    pause.append(MAX_PAUSE_SECONDS + 0.1)
    clock.now += 24 * 3600
    assert collection.tend()
    for _ in range(3):
        clock.now += 24 * 3600
        assert not collection.tend()


def test_the_collector_is_what_it_was_in_the_end() -> None:
    callbacks, before = list(gc.callbacks), gc.get_threshold()
    collection = CircleCollector()
    collection.begin()
    assert gc.callbacks != callbacks
    collection.end()
    assert gc.callbacks == callbacks
    gc.set_threshold(*before)

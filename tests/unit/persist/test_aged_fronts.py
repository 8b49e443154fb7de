"""Long fronts of streams that reach their maximum age: counted aside, and removed at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.persist.operations import eviction
from holdfast.persist.store.states import OpenState
from holdfast.persist.write_path.pipeline import Pipeline
from holdfast.protocol import frames
from holdfast.protocol.changes import CHANGE_SET_MESSAGE, CHANGE_TRIM, NEVER_EXPIRES, REASON_TTL
from holdfast.protocol.errors import StorageFailedError
from holdfast.protocol.names import StoreKind
from holdfast.shared_fs.store_file.reading import going_rows
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.pipeline_world import running
from tests.support.stores import file_of
from tests.support.ticked_store import Bench, append, configure

COUNT, TURN = 100, 4


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "MAX_EXPIRED_ROWS", TURN)
    monkeypatch.setattr(eviction, "_LOOKED_AT_ROWS", 1)
    monkeypatch.setattr(going_rows, "_MEASURED_ROWS", (16, 2))


@pytest.fixture
def aged(tmp_path: Path) -> Iterator[Bench]:
    """A stream whose messages were written at 1000 and whose file has them."""
    bench = Bench(tmp_path, StoreKind.STREAM)
    configure(bench, max_age_seconds=10)
    bench.tick(*[append(b"v" * (n % 7)) for n in range(COUNT)])
    bench.materialise()
    yield bench
    bench.close()


def expire_a_turn(bench: Bench) -> bool:
    is_complete = eviction.expire(bench.store, bench.store.now(bench.time))
    bench.commit()
    return is_complete


def begin(bench: Bench) -> Callable[[], None] | None:
    return eviction.begin_measuring(bench.store, bench.store.now(bench.time))


def counted(bench: Bench) -> None:
    """The first turn of a removal, after which a thread counts the rest."""
    assert not expire_a_turn(bench)
    count = begin(bench)
    assert count is not None
    count()


def trims(bench: Bench) -> list[int]:
    return [
        change[1] for tick in bench.broadcasts for change in tick if change[0] == CHANGE_TRIM
    ]


def finish(bench: Bench) -> None:
    """Remove the rest without another count, and compare the totals with the file's."""
    while not expire_a_turn(bench):
        begin(bench)
    bench.store.validate()
    bench.materialise()
    meta = file_of(bench.store).meta
    rows = list(file_of(bench.store).messages(1, None, 2 * COUNT))
    assert (bench.store.count, bench.store.bytes) == (meta.count, meta.bytes)
    assert meta.count == len(rows)
    assert meta.bytes == sum(len(row[3]) for row in rows)


def test_what_was_counted_is_removed_by_one_trim(aged: Bench) -> None:
    aged.time = 11_000
    counted(aged)
    expire_a_turn(aged)
    assert trims(aged) == [TURN, COUNT]
    assert aged.broadcasts[-1] == [[CHANGE_TRIM, COUNT, REASON_TTL]]
    finish(aged)
    assert aged.store.count == aged.store.bytes == 0


def test_a_short_front_is_removed_in_the_loop(aged: Bench) -> None:
    aged.do(frames.TRIM, COUNT - 4 * TURN)
    aged.time = 11_000
    assert not expire_a_turn(aged)
    assert begin(aged) is None
    finish(aged)


def test_what_is_not_old_enough_stays(aged: Bench) -> None:
    aged.time = 5000
    aged.tick(*[append(b"later") for _ in range(COUNT)])
    aged.materialise()
    aged.time = 11_000
    counted(aged)
    finish(aged)
    assert aged.store.count == COUNT
    assert trims(aged)[:2] == [TURN, COUNT]


def test_messages_that_no_age_ends_are_kept(aged: Bench) -> None:
    aged.store.begin()
    kept = [CHANGE_SET_MESSAGE, 61, b"kept", None, None, NEVER_EXPIRES]
    aged.store.set_message(61, len(b"kept"), kept)
    aged.commit()
    aged.materialise()
    aged.time = 11_000
    counted(aged)
    finish(aged)
    assert list(aged.rows()) == [61]
    assert max(trims(aged)) == 60


def test_appends_and_the_file_may_go_on_between_the_count_and_the_removal(aged: Bench) -> None:
    aged.time = 11_000
    counted(aged)
    aged.execute(append(b"new"))
    aged.commit()
    aged.materialise()
    expire_a_turn(aged)
    assert trims(aged) == [TURN, COUNT]
    finish(aged)
    assert list(aged.rows()) == [COUNT + 1]


def replace(bench: Bench) -> None:
    bench.execute([frames.SET_MESSAGE, 50, b"another"])
    bench.commit()


def delete(bench: Bench) -> None:
    bench.execute([frames.DELETE_MESSAGES, [50]])
    bench.commit()


def trim_some(bench: Bench) -> None:
    bench.execute([frames.TRIM, 50])
    bench.commit()


def fail_a_tick(bench: Bench) -> None:
    bench.execute([frames.TRIM, 50])
    bench.store.fail_tick()


@pytest.mark.parametrize("materialises", [False, True])
@pytest.mark.parametrize("change", [replace, delete, trim_some, fail_a_tick])
def test_a_count_does_not_hold_once_the_front_has_changed(
    aged: Bench, change: Callable[[Bench], None], materialises: bool
) -> None:
    aged.time = 11_000
    counted(aged)
    change(aged)
    if materialises:
        aged.materialise()
    expire_a_turn(aged)
    assert COUNT not in trims(aged)
    finish(aged)
    assert list(aged.rows()) == ([50] if change is replace else [])


def test_a_count_does_not_hold_if_the_turn_before_did_not_reach_the_log(aged: Bench) -> None:
    aged.time = 11_000
    assert not eviction.expire(aged.store, aged.store.now(aged.time))
    aged.store.fail_tick()
    count = begin(aged)
    assert count is not None
    count()
    expire_a_turn(aged)
    assert trims(aged) == [TURN]
    finish(aged)
    assert aged.rows() == {}


def test_what_the_file_lacks_of_the_front_is_not_left_to_a_count(aged: Bench) -> None:
    delete(aged)
    aged.time = 11_000
    assert not expire_a_turn(aged)
    assert begin(aged) is None
    finish(aged)


def test_a_count_leaves_out_what_the_file_lacked_when_the_loop_asked_for_it(aged: Bench) -> None:
    aged.execute(append(b"old"))
    aged.commit()
    appended = aged.number
    aged.time = 11_000
    aged.execute([frames.SET_MESSAGE, COUNT + 1, b"replaced"])
    aged.commit()
    assert not expire_a_turn(aged)
    count = begin(aged)
    assert count is not None
    # The file advances by what is synced: the append, and not yet what replaced it.
    aged.store.materialise(appended)
    count()
    aged.materialise()
    expire_a_turn(aged)
    assert trims(aged) == [TURN, COUNT]
    finish(aged)
    assert aged.rows() == {COUNT + 1: b"replaced"}


def test_other_limits_make_a_count_void(aged: Bench) -> None:
    aged.time = 11_000
    counted(aged)
    aged.execute([frames.CONFIGURE, {"max_age_seconds": 3600}])
    aged.commit()
    assert expire_a_turn(aged)
    assert aged.store.count == COUNT - TURN


@pytest.mark.parametrize("fails", [False, True])
async def test_the_count_runs_in_a_thread_and_others_are_answered_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    aged_front, states, ticks = StoreFile.aged_front, list[Any](), list[int]()
    async with running(tmp_path) as world:
        one, _ = world.stores
        count = COUNT // 10
        for _ in range(10):
            await world.ask(world.arrival(one, *[[frames.APPEND, b"v"]] * count))
        one.materialise(world.progress.synced_tick)

        def noted(file: StoreFile, *arguments: Any) -> Any:
            states.append(one.state)
            if fails:
                raise StorageFailedError(reason="the disk")
            return aged_front(file, *arguments)

        monkeypatch.setattr(StoreFile, "aged_front", noted)
        build = Pipeline._build_tick
        monkeypatch.setattr(
            Pipeline, "_build_tick", lambda line: (ticks.append(1), build(line))
        )
        await world.ask(world.arrival(one, [frames.CONFIGURE, {"max_age_seconds": 1}]))
        world.time += 10_000
        await world.ask(world.arrival(one, [frames.HEAD]))
        assert one.count == one.bytes == 0
        assert states
        assert set(states) == {OpenState.LENT}
        # Without a count, the loop goes on part by part.
        assert (len(ticks) > COUNT // TURN // 4) == fails
        one.validate()

"""Stores are opened after their owners' logs were damaged: complete, or refused, and never less.

Real files and logs in one process: an owner that is killed leaves its files open.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.coordinator.state.lost_state import stores_on_disk
from holdfast.persist.recovery.takeover import DeadLogs
from holdfast.persist.shared_disk import locked_files
from holdfast.persist.shared_disk.opening import StoreOpener
from holdfast.protocol import frames
from holdfast.protocol.changes import CHANGE_SET_MESSAGE
from holdfast.protocol.control import Grant, StoreState
from holdfast.protocol.errors import StoreDamagedError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk.commit_log import CommitLog, LogRecord
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import create_fence, fence
from holdfast.shared_fs.disk.layout import open_layout
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.effort import examples
from tests.support.write_path_parts import a_life, nothing

DISK = Disk()
NAMES = ("a", "b", "c", "d", "e")


@dataclass
class Owned:
    """A store as its owner has it: what is acknowledged, and what of it waits for the file."""

    store: StoreId
    epoch: int = 0
    owner: str = ""
    revision: int = 0
    state: StoreState = StoreState.UNKNOWN
    file: StoreFile | None = None
    waiting: list[AppliedBatch] = field(default_factory=list)


def server_of(incarnation: str) -> str:
    return f"s{incarnation[1]}"


class Past:
    """Two incarnations, `01` of s1 and `02` of s2, and what they did until both were killed."""

    def __init__(self, root: Path) -> None:
        self.layout = open_layout(root, DISK)
        self.stores = {name: Owned(StoreId("acme", StoreKind.STREAM, name)) for name in NAMES}
        self.ticks = dict.fromkeys(("01", "02"), 0)
        self.logs = {}
        for number in self.ticks:
            life = server_of(number), number
            DISK.make_directory(self.layout.incarnation(*life))
            create_fence(DISK, self.layout.fence(*life))
            self.logs[number] = CommitLog(DISK, self.layout.log(*life))

    def write(self, incarnation: str, names: list[str]) -> None:
        """One tick, acknowledged."""
        records = []
        for name in names:
            owned = self.stores[name]
            assert owned.owner == incarnation
            change = [CHANGE_SET_MESSAGE, owned.revision + 1, name.encode()]
            batch = AppliedBatch(owned.revision, 1000, [change])
            payload = frames.encode_changes(owned.epoch, owned.revision, 1000, [change])
            before, owned.revision = owned.revision, owned.revision + 1
            records.append(
                LogRecord(owned.store, owned.epoch, before, owned.revision, [payload], [])
            )
            owned.waiting.append(batch)
            owned.state = max(owned.state, StoreState.CREATED)
        self.ticks[incarnation] += 1
        self.logs[incarnation].append(self.ticks[incarnation], records)
        self.logs[incarnation].prepare_sync()()

    def take(self, name: str, incarnation: str) -> None:
        """The store goes to another owner, or is opened again by its own."""
        owned = self.stores[name]
        if owned.owner != incarnation:
            self.close(name)
            owned.epoch += 1
            owned.owner = incarnation
        path = self.layout.store(owned.store)
        if owned.file is None and path.exists():
            owned.file = StoreFile.open(path, owned.store)
            if owned.file.meta.epoch < owned.epoch:
                owned.file.take(owned.epoch, server_of(incarnation), incarnation)

    def materialise(self, name: str) -> None:
        owned = self.stores[name]
        if owned.file is None and owned.waiting:
            path = self.layout.store(owned.store)
            DISK.make_directory(path.parent)
            owned.file = StoreFile.create(path, owned.store, time=1)
            owned.file.take(owned.epoch, server_of(owned.owner), owned.owner)
        if owned.file is not None:
            owned.file.apply(owned.waiting)
        owned.waiting.clear()

    def close(self, name: str) -> None:
        owned = self.stores[name]
        self.materialise(name)
        if owned.file is not None:
            owned.file.close()
            owned.file = None
            owned.state = StoreState.DURABLE

    def kill(self) -> None:
        self.let_go_of_files()
        self.fence()

    def let_go_of_files(self) -> None:
        for owned in self.stores.values():
            if owned.file is not None:
                owned.file.abandon()

    def fence(self) -> None:
        for incarnation, log in self.logs.items():
            log.close()
            fence(DISK, self.layout.fence(server_of(incarnation), incarnation))

    def damage_frame(self, number: int) -> None:
        """Change a byte of a frame of `01`, by its place in the log."""
        content = self.segment.read_bytes()
        at = 0
        for _ in range(number):
            at = content.index(b"HFlg", at + 1)
        self.segment.write_bytes(content[: at + 40] + b"?" + content[at + 41 :])

    @property
    def segment(self) -> Path:
        return self.layout.log("s1", "01") / "0000000001.log"


@contextlib.contextmanager
def life(chance: random.Random) -> Iterator[Past]:
    with tempfile.TemporaryDirectory() as root:
        yield live(Past(Path(root) / "data"), chance)


def live(past: Past, chance: random.Random) -> Past:
    for _ in range(chance.randint(4, 40)):
        name = chance.choice(NAMES)
        owned = past.stores[name]
        action = chance.random()
        if not owned.owner or action < 0.15:
            past.take(name, chance.choice(("01", "02")))
        elif action < 0.25:
            past.close(name)
        elif action < 0.4:
            past.materialise(name)
        else:
            mine = [each for each in NAMES if past.stores[each].owner == owned.owner]
            names = {name, *chance.sample(mine, chance.randint(0, len(mine) - 1))}
            for each in names:
                past.take(each, owned.owner)
            past.write(owned.owner, sorted(names))
    # What comes last is no torn end: somebody else's frame is behind it.
    past.stores["end"] = Owned(StoreId("acme", StoreKind.STREAM, "end"))
    for _ in range(2):
        past.take("end", "01")
        past.write("01", ["end"])
    past.kill()
    return past


def opened(past: Past) -> dict[str, int | StoreDamagedError]:
    """Open each store for a new incarnation; return the revision of each, or the refusal."""
    layout = past.layout
    DISK.make_directory(layout.incarnation("s3", "03"))
    create_fence(DISK, layout.fence("s3", "03"))
    dead_logs = DeadLogs(DISK, layout, "03")
    dead_logs.refresh()
    return asyncio.run(_open_all(past, dead_logs))


async def _open_all(past: Past, dead_logs: DeadLogs) -> dict[str, int | StoreDamagedError]:
    async def never(*arguments: Any) -> int:
        raise AssertionError(arguments)

    life = a_life(past.layout, server="s3", incarnation="03", clock_ms=lambda: 2000)
    opener = StoreOpener(life, dead_logs, raise_epoch=never, confirm=nothing)
    found: dict[str, int | StoreDamagedError] = {}
    for name, owned in past.stores.items():
        grant = Grant(owned.epoch + 1, max(owned.state, StoreState.CREATED), owned.state)
        try:
            store = await opener.open(owned.store, grant)
        except StoreDamagedError as error:
            found[name] = error
        else:
            found[name] = store.revision
            if store.file is not None:
                store.file.close()
    return found


def check(past: Past, found: dict[str, int | StoreDamagedError]) -> None:
    for name, owned in past.stores.items():
        outcome = found[name]
        if isinstance(outcome, StoreDamagedError):
            assert owned.owner == "01", f"{name} was not its own: {outcome}"
            assert "incarnation 01 of server s1" in str(outcome)
        else:
            assert outcome == owned.revision, f"{name} has lost something"


def refused(found: dict[str, int | StoreDamagedError]) -> set[str]:
    return {name for name, outcome in found.items() if isinstance(outcome, StoreDamagedError)}


EXAMPLES = settings(deadline=None, max_examples=examples(20))


@EXAMPLES
@given(seed=st.integers(0, 1 << 32))
def test_whole_logs_give_back_every_store(seed: int) -> None:
    with life(random.Random(seed)) as past:
        found = opened(past)
        assert found == {name: owned.revision for name, owned in past.stores.items()}


@EXAMPLES
@given(seed=st.integers(0, 1 << 32))
def test_a_flipped_bit_in_a_log_costs_no_store_a_change_without_a_word(seed: int) -> None:
    chance = random.Random(seed)
    with life(chance) as past:
        content = bytearray(past.segment.read_bytes())
        content[chance.randrange(content.rindex(b"HFlg"))] ^= 1 << chance.randrange(8)
        past.segment.write_bytes(content)
        found = opened(past)
        check(past, found)
        # And by who comes next: a refusal leaves what is needed to refuse again.
        shutil.rmtree(past.layout.incarnation("s3", "03"))
        for owned in past.stores.values():
            owned.epoch += 1
        again = opened(past)
        check(past, again)
        assert refused(again) == refused(found)


@EXAMPLES
@given(seed=st.integers(0, 1 << 32))
def test_a_log_that_is_gone_costs_no_store_a_change_without_a_word(seed: int) -> None:
    with life(random.Random(seed)) as past:
        shutil.rmtree(past.layout.log("s1", "01"))
        check(past, opened(past))


@pytest.fixture
def damaged(tmp_path: Path) -> Past:
    """`01` wrote a, b, a, a; `02` wrote c. The frame of b is damaged."""
    past = Past(tmp_path / "data")
    for name, owner in (("a", "01"), ("b", "01"), ("c", "02")):
        past.take(name, owner)
    for name in ("a", "b", "a", "a"):
        past.write("01", [name])
    past.write("02", ["c"])
    past.kill()
    past.damage_frame(1)
    return past


def test_a_store_of_which_nothing_is_left_is_not_taken_for_a_new_one(damaged: Past) -> None:
    damaged.stores["b"].epoch = 1
    found = opened(damaged)
    assert found["a"] == 3, "there is a record of it behind the damage"
    assert found["c"] == 1, "it never was in that log"
    assert "changes after revision 0 may be missing" in str(found["b"])
    assert "0000000001.log at byte" in str(found["b"])


def test_a_store_that_nobody_was_ever_allowed_to_create_is_new(damaged: Past) -> None:
    damaged.stores["new"] = Owned(StoreId("acme", StoreKind.STREAM, "new"), epoch=5)
    assert opened(damaged)["new"] == 0


def test_a_store_of_the_first_epoch_had_no_owner_before(damaged: Past) -> None:
    name = StoreId("acme", StoreKind.STREAM, "first")
    damaged.stores["first"] = Owned(name, epoch=0, state=StoreState.CREATED)
    assert opened(damaged)["first"] == 0


@pytest.mark.parametrize("damage", ["WAL gone", "empty", "gone", "log damaged", "log gone"])
def test_a_file_that_a_survey_found_as_it_was_made_is_made_anew_from_the_logs(
    tmp_path: Path, damage: str
) -> None:
    """Before or after the survey a power cut takes what was never durable. Never does a store of
    which the logs may lack something begin as a new one."""
    past = Past(tmp_path / "data")
    for name in ("a", "b"):
        past.take(name, "01")
    past.write("01", ["a"])
    past.write("01", ["a", "b"])
    past.materialise("a")
    past.write("01", ["b"])
    past.kill()
    path = past.layout.store(past.stores["a"].store)
    if damage == "WAL gone":
        path.with_name(f"{path.name}-wal").unlink()
    [found] = stores_on_disk(past.layout, DISK)
    # The coordinator forgot all else.
    past.stores["a"].epoch, past.stores["a"].state = found.generation, found.state
    if damage == "empty":
        path.write_bytes(b"")
    if damage in ("gone", "log damaged", "log gone"):
        path.unlink()
    if damage in ("empty", "gone", "log damaged", "log gone"):
        path.with_name(f"{path.name}-wal").unlink()
    if damage == "log damaged":
        content = bytearray(past.segment.read_bytes())
        content[len(content) // 4] ^= 1
        past.segment.write_bytes(content)
    if damage == "log gone":
        shutil.rmtree(past.layout.log("s1", "01"))
    outcome = opened(past)["a"]
    if damage.startswith("log"):
        assert "incarnation 01 of server s1" in str(outcome)
    else:
        assert outcome == 2


def test_an_accepted_loss_is_no_reason_to_refuse(damaged: Past) -> None:
    damaged.layout.loss_accepted("s1", "01").touch()
    assert opened(damaged) == {"a": 3, "b": 0, "c": 1, "d": 0, "e": 0}


def test_no_copy_is_made_of_a_locked_file_that_may_lack_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy looks as if its owner had closed it."""
    monkeypatch.setattr(locked_files, "LOCK_WAIT_SECONDS", 0.0)
    past = Past(tmp_path / "data")
    for name in ("a", "b"):
        past.take(name, "01")
        past.write("01", [name])
        past.materialise(name)
    past.write("01", ["b"])
    for _ in range(2):
        past.write("01", ["a"])
    past.damage_frame(2)
    past.fence()
    found = opened(past)
    assert "changes after revision 1 may be missing" in str(found["b"])
    assert past.layout.generations(DISK, past.stores["b"].store) == [1]
    assert found["a"] == 3
    assert past.layout.generations(DISK, past.stores["a"].store)[-1] == 2
    past.let_go_of_files()

"""A real S3 gateway that is killed while it writes: what no emulator in a thread can show.

Runs where `HOLDFAST_TEST_S3=radosgw` asks for it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from holdfast.shared_fs.bucket.bucket import Bucket, open_bucket
from holdfast.shared_fs.bucket.bucket_errors import (
    ObjectConflictError,
    ObjectExistsError,
    OutcomeUnknownError,
)
from holdfast.shared_fs.bucket.bucket_tries import Retry
from tests.support.radosgw import RadosGateway, running_radosgw
from tests.support.s3_server import VARIABLE

PATIENT = Retry(max_tries=1000, max_wait_seconds=0.5, timeout_seconds=120.0)
WRITERS, ROUNDS = 8, 25


@pytest.fixture
def server() -> Iterator[RadosGateway]:
    if os.environ.get(VARIABLE) != "radosgw":
        pytest.skip(f"set {VARIABLE}=radosgw")
    with running_radosgw() as server, pytest.MonkeyPatch.context() as environment:
        for name, value in server.credentials.items():
            environment.setenv(name, value)
        yield server


class Writers:
    """Each round, all of them try to create one object, and each adds its mark to another one."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._bucket.put_new("marks", b"\n")
        self.rounds = [0] * WRITERS
        #: Who was told that it created which object, in any order.
        self.created: list[tuple[int, int]] = []

    def run(self, writer: int) -> None:
        for number in range(ROUNDS):
            try:
                self._bucket.put_new(f"log/{number}", f"{writer}".encode())
                self.created.append((number, writer))
            except ObjectExistsError:
                pass
            self._mark(f"\n{writer}-{number}\n".encode())
            self.rounds[writer] += 1

    def _mark(self, mark: bytes) -> None:
        unknown = False
        while True:
            found = self._bucket.get("marks")
            if mark in found.body:
                assert unknown, "a write that was refused took effect"
                return
            try:
                self._bucket.replace("marks", found.body + mark, found.version)
                return
            except ObjectConflictError:
                unknown = False
            except OutcomeUnknownError:
                unknown = True


@pytest.mark.timeout(400)
def test_each_write_is_done_once_however_often_the_gateway_is_killed(server: RadosGateway) -> None:
    bucket = open_bucket(server.url, retry=PATIENT)
    writers = Writers(bucket)
    with ThreadPoolExecutor(WRITERS) as threads:
        running = [threads.submit(writers.run, writer) for writer in range(WRITERS)]
        kills = 0
        while not all(one.done() for one in running):
            before = sum(writers.rounds)
            server.restart()
            kills += 1
            _until_further(writers, before, running)
        for one in running:
            one.result()
    assert kills > 1, f"{kills} kills"
    marks = bucket.get("marks").body.split()
    assert sorted(marks) == sorted(
        f"{writer}-{number}".encode() for writer in range(WRITERS) for number in range(ROUNDS)
    )
    assert sorted(number for number, _ in writers.created) == list(range(ROUNDS))
    for number, writer in writers.created:
        assert bucket.get(f"log/{number}").body == f"{writer}".encode()
    bucket.close()


def _until_further(writers: Writers, before: int, running: list[Future[None]]) -> None:
    """Wait until the writers have written something since."""
    pause = threading.Event()
    for _ in range(1200):
        if sum(writers.rounds) > before + WRITERS or all(one.done() for one in running):
            return
        pause.wait(0.1)
    raise AssertionError("nothing is written any more")

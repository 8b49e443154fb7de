"""The benchmark of the tiers from end to end, as small as can be; no number is judged."""

from __future__ import annotations

import dataclasses
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.bench.read_back import WrongReadBackError
from holdfast.bench.tiers import cold as tiers_cold
from holdfast.bench.tiers import tiers
from holdfast.bench.tiers.buckets import running_moto, slowed
from holdfast.bench.tiers.prices import Requests
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.shared_fs.bucket.bucket import open_bucket
from holdfast.shared_fs.bucket.bucket_errors import ObjectExistsError
from tests.support.forked_bench import forked_servers, measured, quick_options


@pytest.fixture(autouse=True)
def forked() -> Iterator[None]:
    with forked_servers():
        yield


def test_every_work_is_measured_and_nothing_is_left_behind(tmp_path: Path) -> None:
    works = {work.name: work for work in measured(tiers, tmp_path)}
    assert list(works) == list(tiers.WORK_NAMES)
    assert set(works["open_cold"].sides) == {"directory", "moto S3"}
    [stored] = works["stored"].sides.values()
    assert stored.median("per_second") > 0
    assert stored.median("puts_per_second") > 0


def test_without_moto_what_needs_no_s3_is_measured_and_the_reason_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "moto_is_missing", lambda: "it is not there")
    said: list[str] = []
    given = dataclasses.replace(quick_options(tmp_path, "snapshot", "stored"), say=said.append)
    report = tiers.run(given)
    assert [work.name for work in report.works] == ["snapshot"]
    assert all("moto" not in side for side in report.works[0].sides)
    assert any("it is not there" in line for line in said)


def test_a_cold_store_that_comes_back_as_another_ends_the_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers_cold, "noise", lambda number: b"%d" % number)
    with pytest.raises(WrongReadBackError):
        tiers.run(quick_options(tmp_path, "many_cold"))
    assert list(tmp_path.iterdir()) == []


def test_too_many_rounds_or_no_cold_stores_beyond_the_sample_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="rounds"):
        tiers.run(dataclasses.replace(quick_options(tmp_path), rounds=1000))
    few = dataclasses.replace(tiers.QUICK, cold_stores=tiers.QUICK.cold_sample)
    with pytest.raises(InvalidArgumentError, match="cold_stores"):
        tiers.run(quick_options(tmp_path), few)


def test_a_slowed_bucket_is_a_bucket_and_counts_what_is_asked_of_it(tmp_path: Path) -> None:
    with (
        running_moto(quick_options(tmp_path), tmp_path) as moto,
        slowed(quick_options(tmp_path), moto, 1.0, tmp_path / "proxy") as slow,
    ):
        bucket = open_bucket(slow.make_bucket("counted"))
        try:
            bucket.try_out()
            before = slow.counted()
            body = bytes(100_000)
            bucket.put_new("log/s1/1", body)
            with pytest.raises(ObjectExistsError):
                bucket.put_new("log/s1/1", body)
            assert bucket.get("log/s1/1").body == body
            bucket.put_new("packs/1", b"")
            assert [each.key for each in bucket.list("log/")] == ["log/s1/1"]
            bucket.delete("log/s1/1")
            counted = slow.counted() - before
        finally:
            bucket.close()
        assert counted.of("packs") == Requests(puts=1)
        # Two puts and a list; the put that came too late may have looked whose object is there.
        assert counted.of("log").puts == 3
        assert counted.of("log").gets >= 1
        assert counted.of("log").deletes == 1
        assert counted.put_bytes("log") >= 2 * len(body)
        assert counted.seconds["PUT log"] >= 0.002
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"{slow.address}/no-such-bucket/key", timeout=10)

"""Cold stores that are only recorded look to coordinator and bucket as those that a server has
left."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from holdfast.bench.store.idle_stores import TENANT, store_named
from holdfast.bench.tiers.cold_stores import MESSAGES, make_cold_stores
from holdfast.bench.tiers.list_cold import main
from holdfast.bench.tiers.snapshots import noise
from holdfast.coordinator.state.state_file import open_state_file
from holdfast.shared_fs.bucket.bucket import open_bucket
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.snapshots.manifest import open_manifests
from holdfast.shared_fs.snapshots.snapshot import fetch

SAMPLE, COUNT = 3, 40


@pytest.fixture
def url(tmp_path: Path) -> str:
    folder = tmp_path / "bucket"
    folder.mkdir()
    with closing(open_bucket(folder.as_uri())) as bucket:
        make_cold_stores(tmp_path / "shared", bucket, "s1", SAMPLE, COUNT, lambda line: None)
    return folder.as_uri()


def test_every_store_has_an_entry_and_is_recorded_as_cold(tmp_path: Path, url: str) -> None:
    with closing(open_bucket(url)) as bucket:
        entries = dict(open_manifests(bucket).entries())
    assert set(entries) == {store_named(number) for number in range(COUNT)}
    versions = [entry.newest for entry in entries.values()]
    assert len({version.sha256 for version in versions if version}) > COUNT - SAMPLE
    layout = Layout(tmp_path / "shared")
    path = layout.coordinator / "state.db"
    with closing(open_state_file(path, Disk())) as state, state.transaction():
        page, _ = state.stores.page(TENANT, None, "", None, COUNT + 1)
    assert len(page) == COUNT
    assert all(each.cold for each in page)
    assert not list(layout.root.rglob("*.stream.*.db"))


def test_those_of_the_sample_can_be_brought_back(tmp_path: Path, url: str) -> None:
    with closing(open_bucket(url)) as bucket:
        for number in range(SAMPLE):
            store = store_named(number)
            entry = open_manifests(bucket).find(store)
            assert entry is not None and entry.newest is not None
            path = tmp_path / "restored"
            with closing(fetch(bucket, store, entry.newest, path).open_in_memory(path)) as file:
                row = file.message(MESSAGES)
                assert file.meta.count == MESSAGES
                assert row is not None and row[3] == noise(MESSAGES)


def test_a_listing_counts_them_and_tells_its_own_memory(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([url]) == 0
    said = capsys.readouterr().out
    assert f'"stores": {COUNT}, "versions": {COUNT}' in said
    assert '"peak_rss_bytes": 0' not in said

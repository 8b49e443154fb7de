"""docs/deploy/upgrade.md names the formats of the code."""

from __future__ import annotations

from holdfast.coordinator.state import state_format
from holdfast.protocol import frames
from holdfast.shared_fs.bucket_log import log_object
from holdfast.shared_fs.disk import layout
from holdfast.shared_fs.snapshots import manifest, shard
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.pages.page_sizes import OTHER_PAGES
from tests.support.documents import read, table


def test_the_formats_that_are_listed_are_those_of_the_code() -> None:
    rows = table(read("deploy/upgrade.md"), "what", "format")
    [more] = [row[1] for row in rows if row[1].endswith(" more")]
    assert more == f"{OTHER_PAGES} more"
    listed = {row[0]: int(row[1]) for row in rows if row[1] != more}
    assert listed == {
        "frames on the wire": frames.PROTOCOL_VERSION,
        "the tree on the file system, logs included": layout.FORMAT_VERSION,
        "a store file": schema.FORMAT_VERSION,
        "that of a stream, once a message has a subject or a header block": schema.SUBJECTS_FORMAT,
        "that of a kv, once it keeps a [history](../guide.md#the-history-of-a-key)": (
            schema.HISTORY_FORMAT
        ),
        "that of a stream, once it keeps a [chain](../chain.md)": schema.CHAIN_FORMAT,
        "that of a kv, once it keeps a chain": schema.KV_CHAIN_FORMAT,
        "that of any store, once it has an [encrypted](../encryption.md) value": (
            schema.ENCRYPTED_FORMAT
        ),
        "that of a store with a chain, once it has one": schema.ENCRYPTED_CHAIN_FORMAT,
        "`state.db` of the coordinator": state_format.FORMAT_VERSION,
        "the bucket": manifest.FORMAT_VERSION,
        "the bucket, once a tenant has one of its own": manifest.PLACES_FORMAT,
        "the bucket, once a store has been [forked](../forks.md)": manifest.FORKS_FORMAT,
        "the bucket, once it has a [snapshot in frames](../tiers.md#snapshots), of an image above"
        " 4 MiB": manifest.FRAMES_FORMAT,
        "log objects in the bucket": log_object.FORMAT,
        "a shard of manifests": shard._SHARD_FORMAT,
    }
    assert max(listed[name] for name in listed if name.startswith("that of")) == (
        schema.LATEST_FORMAT
    )

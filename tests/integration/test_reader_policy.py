"""Whoever has a tenant's policy reads what that tenant wrote, and nothing that others wrote.

moto judges actions and resources, not conditions, so the lists of prefixes are only looked at.
"""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import pytest
from click.testing import CliRunner
from moto.core.authorization import enable_iam_authentication

from holdfast.cli.command import holdfast
from holdfast.protocol.changes import CHANGE_SET_MESSAGE
from holdfast.protocol.names import StoreId, StoreKind, check_tenant
from holdfast.shared_fs.bucket.bucket_errors import BucketRefusedError
from holdfast.shared_fs.bucket_log.bucket_log import BucketLog, slot_key
from holdfast.shared_fs.snapshots.existing_bucket import existing_bucket
from holdfast.shared_fs.snapshots.manifest import open_manifests
from holdfast.shared_fs.snapshots.placing import give_bucket
from holdfast.shared_fs.snapshots.snapshot import verify
from tests.support.bucket_world import BucketWorld
from tests.support.moto_server import BUCKET, REGION, running_moto

OURS = StoreId("acme", StoreKind.STREAM, "chat")
THEIRS = OURS._replace(tenant="acme-2")


def policy_of(tenant: str, url: str, own: str) -> dict[str, Any]:
    places = ("--bucket", url, "--own", own)
    done = CliRunner().invoke(holdfast, ["tenant", "policy", tenant, *places])
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def give(endpoint: str, policy: dict[str, Any], environment: pytest.MonkeyPatch) -> None:
    """Be somebody who has this policy alone."""
    iam = boto3.client("iam", endpoint_url=endpoint, region_name=REGION)
    iam.create_user(UserName="analyst")
    iam.put_user_policy(UserName="analyst", PolicyName="reader", PolicyDocument=json.dumps(policy))
    key = iam.create_access_key(UserName="analyst")["AccessKey"]
    environment.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    environment.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])


def test_a_reader_of_a_tenant_reads_that_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_moto() as moto:
        url, own = (moto.replace(BUCKET, f"{BUCKET}/{each}", 1) for each in ("live", "own"))
        with closing(BucketWorld(tmp_path, url)) as world:
            for packed in (True, False):
                for store in (OURS, THEIRS):
                    world.change(store, [CHANGE_SET_MESSAGE, 1 + packed, b"value"])
                world.publish(packed=packed)
            with closing(existing_bucket(url)) as cluster:
                give_bucket(cluster, check_tenant("acme"), own)
                before, world.bucket = world.bucket, cluster
                world.change(OURS, [CHANGE_SET_MESSAGE, 3, b"value"])
                world.publish(OURS)
                world.bucket = before
            log = BucketLog(world.bucket, "s1", "i1")
            log.begin()
            log.put(log.prepare([world.change(OURS, [CHANGE_SET_MESSAGE, 4, b"v"])]))
        policy = policy_of("acme", url, own)
        lists = [each for each in policy["Statement"] if "Condition" in each]
        assert [each["Condition"]["StringLike"]["s3:prefix"] for each in lists] == [
            ["live/manifests/*"],
            ["live/snapshots/acme/*", "live/packs/acme/*", "live/tables/changes/tenant=acme/*"],
            ["own/snapshots/acme/*", "own/packs/acme/*"],
        ]
        for each in lists:
            del each["Condition"]
        give(moto.partition("endpoint=")[2].partition("&")[0], policy, monkeypatch)
        with enable_iam_authentication(), closing(existing_bucket(url)) as bucket:
            entries = dict(open_manifests(bucket).entries())
            ours = entries[OURS].versions
            kinds = {version.key.partition("/")[0] for version in ours}
            assert kinds == {"packs", "snapshots", "places"}
            for version in ours:
                verify(bucket, version)
            for version in entries[THEIRS].versions:
                with pytest.raises(BucketRefusedError, match="403"):
                    verify(bucket, version)
            for key in (slot_key("s1", "i1", 1), "auth/x", "tables/changes/tenant=acme-2/x"):
                with pytest.raises(BucketRefusedError, match="403"):
                    bucket.get(key)
            for key in ("snapshots/acme/chat.stream/x", "manifests/00"):
                with pytest.raises(BucketRefusedError, match="403"):
                    bucket.put_new(key, b"x")
            with pytest.raises(BucketRefusedError, match="403"):
                bucket.delete(ours[0].key)


def test_a_policy_is_for_s3(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        holdfast, ["tenant", "policy", "acme", "--bucket", f"file://{tmp_path}"]
    )
    assert done.exit_code != 0
    assert "s3://BUCKET/PREFIX" in str(done.exception) + done.output

"""Real processes without a shared file system: each part has a disk of its own, and the bucket
holds all data."""

from __future__ import annotations

import shutil
from pathlib import Path

from holdfast.shared_fs.bucket.bucket import Bucket, open_bucket
from tests.support.cluster import Processes
from tests.support.nats_server import NatsServer
from tests.support.process import Process
from tests.support.s3_server import running_s3_url


class LocalDisks(Processes):
    """A cluster whose parts share a bucket and nothing else."""

    def __init__(self, directory: Path, nats: NatsServer) -> None:
        (directory / "bucket").mkdir()
        #: A folder, or a part of its own of the S3 server that `HOLDFAST_TEST_S3` names.
        self.url = running_s3_url() or (directory / "bucket").as_uri()
        super().__init__(directory, nats)

    @property
    def bucket(self) -> Bucket:
        return open_bucket(self.url)

    def disk(self, name: str) -> Path:
        return self.directory / "disks" / name

    def start(
        self, part: str, name: str, *arguments: str, data: Path | None = None, module: str = ""
    ) -> Process:
        arguments = ("--disk", "local", "--bucket", self.url, *arguments)
        return super().start(part, name, *arguments, data=data or self.disk(name), module=module)

    def start_server(self, name: str, *arguments: str) -> Process:
        return self.start_persist(
            name, "--snapshot-seconds", "0.2", "--idle-close-seconds", "1", *arguments
        )

    def start_servers(self) -> dict[str, Process]:
        return {name: self.start_server(name) for name in ("s1", "s2", "s3")}

    def lose_disk(self, name: str) -> None:
        shutil.rmtree(self.disk(name))

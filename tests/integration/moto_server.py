"""An S3 server for tests: moto's, in a thread of this process, on a free port of loopback."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import boto3
import pytest
from moto.server import ThreadedMotoServer

BUCKET = "holdfast-test"
REGION = "us-east-1"


@contextmanager
def running_moto() -> Iterator[str]:
    """Yield the URL of an empty bucket, and have boto3 find credentials meanwhile."""
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ACCESS_KEY_ID", "test")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "test")
        for name in ("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
            environment.delenv(name, raising=False)
        server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        server.start()
        try:
            host, port = server.get_host_and_port()
            endpoint = f"http://{host}:{port}"
            client = boto3.client("s3", endpoint_url=endpoint, region_name=REGION)
            client.create_bucket(Bucket=BUCKET)
            client.close()
            yield f"s3://{BUCKET}?endpoint={endpoint}&region={REGION}"
        finally:
            server.stop()

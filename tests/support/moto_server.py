"""An S3 server for tests: moto's, in a thread of this process, on a free port of loopback."""

from __future__ import annotations

import functools
import logging
import threading
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import botocore.session
import pytest

BUCKET = "holdfast-test"
REGION = "us-east-1"

# What S3 is, is a megabyte of JSON, which each client would read again.
botocore.session.create_loader = functools.cache(botocore.session.create_loader)


def _one_at_a_time(environment: pytest.MonkeyPatch) -> None:
    """Moto looks at a condition and stores the object in two steps: side by side, two writers that
    expect the same version could both have their way, as on S3 they cannot."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication

    lock = threading.Lock()
    handle = DomainDispatcherApplication.__call__

    def call(self: Any, environ: Any, start_response: Any) -> Iterable[bytes]:
        with lock:
            return handle(self, environ, start_response)  # type: ignore[no-any-return]

    environment.setattr(DomainDispatcherApplication, "__call__", call)


@contextmanager
def running_moto() -> Iterator[str]:
    """Yield the URL of an empty bucket, and have boto3 find credentials meanwhile."""
    # Here, since every process of a run of the tests imports this module, and few start a server.
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ACCESS_KEY_ID", "test")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "test")
        for name in ("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
            environment.delenv(name, raising=False)
        _one_at_a_time(environment)
        server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        server.start()
        try:
            host, port = server.get_host_and_port()
            endpoint = f"http://{host}:{port}"
            # What moto holds is the process's: an earlier test's bucket would be here again.
            urllib.request.urlopen(f"{endpoint}/moto-api/reset", data=b"").close()
            client = boto3.client("s3", endpoint_url=endpoint, region_name=REGION)
            client.create_bucket(Bucket=BUCKET)
            client.close()
            yield f"s3://{BUCKET}?endpoint={endpoint}&region={REGION}"
        finally:
            server.stop()

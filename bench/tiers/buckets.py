"""The buckets that are measured: a directory, and S3 as emulated by moto, perhaps slowed down.

with running_moto(options, folder) as moto:
    url = moto.make_bucket("first")                     s3://first?endpoint=http://127.0.0.1:...
    with slowed(options, moto, 25, folder) as slow:
        ... slow.make_bucket("second") ... slow.counted() ...

moto is a development dependency. If it is missing, `moto_is_missing` says so, and works that need
it are skipped. It holds everything in memory and answers from one Python process, so its speed says
little about S3. It shows how many requests something takes, one after the other.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import boto3

from holdfast.bench.options import BenchOptions
from holdfast.bench.processes import BenchProcess
from holdfast.bench.tiers.prices import Requests
from holdfast.bench.tiers.slow_bucket import COUNTS_PATH

_REGION: Final = "us-east-1"
_ANSWER_SECONDS: Final = 30.0
#: moto accepts any credentials, but boto3 needs some.
_CREDENTIALS: Final = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
_CREDENTIALS_ELSEWHERE: Final = ("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ENDPOINT_URL")
_LISTENS: Final = re.compile(r"Running on http://127\.0\.0\.1:(\d+)")
_PUTS: Final = frozenset(["PUT", "POST", "LIST"])
_GETS: Final = frozenset(["GET", "HEAD"])


@dataclass(frozen=True, slots=True)
class Counted:
    """The requests to a bucket, by `<method> <first part of the key>`."""

    requests: Mapping[str, int] = field(default_factory=dict)
    sent_bytes: Mapping[str, int] = field(default_factory=dict)
    #: The total time until the answers.
    seconds: Mapping[str, float] = field(default_factory=dict)

    def __sub__(self, earlier: Counted) -> Counted:
        """Return the requests after `earlier`."""
        return Counted(
            {what: n - earlier.requests.get(what, 0) for what, n in self.requests.items()},
            {what: n - earlier.sent_bytes.get(what, 0) for what, n in self.sent_bytes.items()},
            {what: n - earlier.seconds.get(what, 0.0) for what, n in self.seconds.items()},
        )

    def of(self, *prefixes: str) -> Requests:
        """Return the requests below some prefixes, or all requests."""
        found = Requests()
        for what, count in self.requests.items():
            method, _, prefix = what.partition(" ")
            if prefixes and prefix not in prefixes:
                continue
            if method in _PUTS:
                found += Requests(puts=count)
            elif method in _GETS:
                found += Requests(gets=count)
            else:
                found += Requests(deletes=count)
        return found

    def put_bytes(self, *prefixes: str) -> int:
        """Return the bytes that were put below some prefixes, or all bytes."""
        return sum(
            count
            for what, count in self.sent_bytes.items()
            if not prefixes or what.partition(" ")[2] in prefixes
        )


class Endpoint:
    """An S3 endpoint on loopback."""

    def __init__(self, port: int) -> None:
        self.port = port

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def make_bucket(self, name: str) -> str:
        """Make an empty bucket and return its URL."""
        client = boto3.client("s3", endpoint_url=self.address, region_name=_REGION)
        client.create_bucket(Bucket=name)
        client.close()
        return f"s3://{name}?endpoint={self.address}&region={_REGION}"


class SlowEndpoint(Endpoint):
    """An endpoint that is slowed down, and counts requests."""

    def counted(self) -> Counted:
        """Return the requests so far. Raises OSError."""
        with urllib.request.urlopen(self.address + COUNTS_PATH, timeout=_ANSWER_SECONDS) as answer:
            told = json.load(answer)
        return Counted(
            {what: count for what, (count, _, _) in told.items()},
            {what: size_bytes for what, (_, size_bytes, _) in told.items()},
            {what: seconds for what, (_, _, seconds) in told.items()},
        )


def moto_is_missing() -> str:
    """Return why there can be no S3, or an empty text if there can."""
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
        return "moto is not installed: it comes with the extra dev"
    return ""


@contextlib.contextmanager
def running_moto(options: BenchOptions, folder: Path) -> Iterator[Endpoint]:
    """Run moto around the body, with credentials for it in the environment of new processes."""
    log_file = folder / "moto.log"
    command = [sys.executable, "-P", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with _credentials():
        moto = BenchProcess("moto", options.tethered(command), log_file)
        try:
            yield Endpoint(moto.awaited(lambda: _port_in_log(log_file)))
        finally:
            moto.kill()


@contextlib.contextmanager
def slowed(
    options: BenchOptions, endpoint: Endpoint, latency_ms: float, folder: Path
) -> Iterator[SlowEndpoint]:
    """Run a slow proxy in front of an endpoint around the body."""
    folder.mkdir(parents=True)
    program = [sys.executable, "-P", "-m", "holdfast.bench.tiers.slow_bucket"]
    command = [*program, str(endpoint.port), str(latency_ms), str(folder)]
    proxy = BenchProcess("slow bucket", options.tethered(command), folder / "proxy.log")
    try:
        yield SlowEndpoint(proxy.awaited(lambda: _port_in_file(folder / "port")))
        proxy.check()
    finally:
        proxy.stop()


def _port_in_log(log_file: Path) -> int | None:
    found = _LISTENS.search(log_file.read_text())
    return None if found is None else int(found[1])


def _port_in_file(path: Path) -> int | None:
    return int(path.read_text()) if path.exists() else None


@contextlib.contextmanager
def _credentials() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in (*_CREDENTIALS, *_CREDENTIALS_ELSEWHERE)}
    for name in _CREDENTIALS_ELSEWHERE:
        os.environ.pop(name, None)
    os.environ.update(_CREDENTIALS)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

"""The S3 server that tests use: moto's, or the one that `HOLDFAST_TEST_S3` names.

| HOLDFAST_TEST_S3 | server |
|---|---|
| not set | moto's, in a thread of this process |
| `radosgw` | a real radosgw, started for the tests: `tests/support/radosgw.py` |
| `s3://BUCKET/PREFIX?endpoint=URL&region=NAME` | that one, with boto3's usual credentials |

Each time, tests get a prefix of their own.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.moto_server import running_moto
from tests.support.radosgw import running_radosgw

VARIABLE = "HOLDFAST_TEST_S3"


def is_moto() -> bool:
    """Return whether tests use moto's server, which shares this process."""
    return not os.environ.get(VARIABLE)


@contextmanager
def running_s3() -> Iterator[str]:
    """Yield the URL of a bucket without objects, and have boto3 find credentials meanwhile."""
    asked = os.environ.get(VARIABLE, "")
    if not asked:
        with running_moto() as url:
            yield url
    elif asked == "radosgw":
        with (
            tempfile.TemporaryDirectory(prefix="radosgw-") as folder,
            running_radosgw(Path(folder)) as server,
            pytest.MonkeyPatch.context() as environment,
        ):
            for name, value in server.credentials.items():
                environment.setenv(name, value)
            yield server.url
    elif asked.startswith("s3://"):
        bare, _, query = asked.partition("?")
        yield f"{bare.rstrip('/')}/{secrets.token_hex(4)}?{query}"
    else:
        raise pytest.UsageError(f"{VARIABLE}={asked}: radosgw, or s3://...")

"""The S3 server that tests use: moto's, or the one that `HOLDFAST_TEST_S3` names.

| HOLDFAST_TEST_S3 | server |
|---|---|
| not set | moto's, in a thread of this process |
| `radosgw` | a real radosgw, started for the tests: `tests/support/radosgw.py` |
| `s3://holdfast-test/PREFIX?endpoint=URL&region=NAME` | that one, with boto3's usual credentials |

Each time, tests get a prefix of their own. `python -m tests.support.radosgw COMMAND` sets the last
kind of value; then the tests of clusters without a shared file system keep their data there too.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.moto_server import running_moto
from tests.support.radosgw import running_radosgw

VARIABLE = "HOLDFAST_TEST_S3"


def running_s3_url() -> str | None:
    """Return the URL of a part without objects of a server that runs already; None without one."""
    asked = os.environ.get(VARIABLE, "")
    if not asked.startswith("s3://"):
        return None
    bare, _, query = asked.partition("?")
    return f"{bare.rstrip('/')}/{secrets.token_hex(4)}?{query}"


@contextmanager
def running_s3() -> Iterator[str]:
    """Yield the URL of a bucket without objects, and have boto3 find credentials meanwhile."""
    asked = os.environ.get(VARIABLE, "")
    if not asked:
        with running_moto() as url:
            yield url
    elif asked == "radosgw":
        with (
            running_radosgw() as server,
            pytest.MonkeyPatch.context() as environment,
        ):
            for name, value in server.credentials.items():
                environment.setenv(name, value)
            yield server.url
    elif url := running_s3_url():
        yield url
    else:
        raise pytest.UsageError(f"{VARIABLE}={asked}: radosgw, or s3://...")

"""Connections of store files: what a process may set for all of them, and when."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from holdfast.protocol.errors import HoldfastError, StorageFailedError, StoreDamagedError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.sqlite_connection import (
    configure_process,
    connect,
    our_error,
    page_checksum,
)

STORE = StoreId("acme", StoreKind.STREAM, "a.b")

CONFIGURE_AND_WRITE = """
import sys
from pathlib import Path
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.store_file.sqlite_connection import configure_process
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile
assert configure_process()
path, store = Path(sys.argv[1]), StoreId("acme", 1, "a.b")
file = StoreFile.create(path, store, time=1)
file.apply([AppliedBatch(0, 1, [[1, 1, b"v"]])])
assert not configure_process()
file.close()
file = StoreFile.open(path, store)
file.quick_check()
assert file.message(1)[3] == b"v"
file.close()
"""


def test_a_configured_process_reads_and_writes_as_before(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CONFIGURE_AND_WRITE, str(tmp_path / "db")]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0


def test_a_process_that_has_a_connection_is_left_as_it_is() -> None:
    connection = apsw.Connection(":memory:")
    assert not configure_process()
    assert connection.execute("SELECT 1").get == 1
    connection.close()


def test_the_checksum_of_a_page_is_that_of_sqlites_own_vfs(tmp_path: Path) -> None:
    path = tmp_path / "db"
    connection = connect(str(path), apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE, None)
    connection.pragma("page_size", schema.PAGE_BYTES)
    connection.reserve_bytes("main", schema.CHECKSUM_BYTES)
    connection.execute("CREATE TABLE t(a)")
    values = [(random.Random(number).randbytes(300),) for number in range(50)]
    # Runs of zeros that begin and end anywhere.
    values += [(bytes(7 * number) + b"\x01" * (number % 11),) for number in range(100)]
    connection.executemany("INSERT INTO t VALUES (?)", values)
    connection.close()
    content = path.read_bytes()
    assert len(content) > 10 * schema.PAGE_BYTES
    for start in range(0, len(content), schema.PAGE_BYTES):
        page = content[start : start + schema.PAGE_BYTES]
        assert page_checksum(page) == page[-schema.CHECKSUM_BYTES :]


def test_an_error_of_sqlite_says_what_it_means_for_the_store(tmp_path: Path) -> None:
    (tmp_path / "db").write_bytes(os.urandom(4096))
    errors: list[HoldfastError] = []
    for path in (tmp_path / "db", tmp_path):
        with pytest.raises(apsw.Error) as caught:
            connect(str(path), apsw.SQLITE_OPEN_READWRITE, None).execute("SELECT * FROM t")
        errors.append(our_error(caught.value, STORE))
    assert [type(error) for error in errors] == [StoreDamagedError, StorageFailedError]
    assert all(str(STORE) in str(error) for error in errors)

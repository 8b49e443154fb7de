"""`holdfast export --decrypt` on Spark with workers in processes of their own: keys reach them by
their files alone, and nothing that Spark keeps of a job has one."""

from __future__ import annotations

import base64
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pyspark
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from holdfast.protocol import changes
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.shared_fs.bucket.bucket import open_bucket
from holdfast.shared_fs.encryption.data_keys import TenantKeys
from holdfast.shared_fs.encryption.master_keys import MasterKey
from holdfast.shared_fs.encryption.registry import KeyRegistry, keys_in_bucket
from holdfast.shared_fs.encryption.sessions import CipherSessions
from holdfast.shared_fs.encryption.store_cipher import StoreCipher
from holdfast.spark.errors import SparkFailedError
from holdfast.spark.export.export import export
from holdfast.spark.rows.decrypting import ExportKeys
from tests.support.bucket_world import BucketWorld, stream
from tests.support.holdfast_up import COMMAND
from tests.support.raw_search import holds

MASTER = MasterKey(bytes(range(7, 39)))
NOTES, PLAIN = stream("notes"), stream("plain")
SECRET = bytes.fromhex("8c1f73a9d04be65217f8c3609ab25d74e1fb0a66")
#: Two workers, each with a JVM and Python processes of its own.
_WORKERS = "local-cluster[2,1,512]"


class Exporting:
    """An encrypted bucket, and a machine whose Spark leaves all its files below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.world = BucketWorld(folder, f"file://{folder / 'bucket'}")
        self.registry: KeyRegistry = keys_in_bucket(open_bucket(self.world.url))
        self.registry.encrypt(["acme"], MASTER, 1)
        self.table = folder / "clear"
        self.key = folder / "keys" / "master.key"
        self.key.parent.mkdir()
        self.write_key(MASTER.key)
        # What Spark keeps: events with plans, logs of workers, files of jobs.
        self.spark = folder / "spark"
        for each in ("conf", "events", "local", "home", "tmp"):
            (self.spark / each).mkdir(parents=True)
        settings = {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": (self.spark / "events").as_uri(),
            "spark.sql.maxPlanStringLength": "1000000",
            "spark.executor.memory": "512m",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        lines = "".join(f"{name} {value}\n" for name, value in settings.items())
        (self.spark / "conf" / "spark-defaults.conf").write_text(lines)
        # Workers of a local cluster have their folders in Spark's home.
        for each in Path(pyspark.__file__).parent.iterdir():
            if each.name != "work":
                (self.spark / "home" / each.name).symlink_to(each)

    def write_key(self, key: bytes) -> None:
        self.key.touch(0o600)
        self.key.write_bytes(key)

    def write(self, *values: bytes) -> None:
        if NOTES not in self.world.held:
            self.world.create(NOTES)
            self.world.change(PLAIN, [changes.CHANGE_SET_MESSAGE, 1, b"in clear"])
        keys = TenantKeys.unwrapped(self.registry.record("acme"), {MASTER.id: MASTER})
        cipher = StoreCipher(CipherSessions(keys), NOTES)
        first = self.world.held[NOTES].revision + 1
        self.world.change(
            NOTES,
            *(
                cipher.encrypted([changes.CHANGE_SET_MESSAGE, at, value, {"by": "ada"}], at)
                for at, value in enumerate(values, first)
            ),
        )
        self.world.publish()

    def run(self, *options: str) -> subprocess.CompletedProcess[bytes]:
        environment = {
            **os.environ,
            "SPARK_CONF_DIR": str(self.spark / "conf"),
            "SPARK_LOCAL_DIRS": str(self.spark / "local"),
            "SPARK_HOME": str(self.spark / "home"),
            "TMPDIR": str(self.spark / "tmp"),
        }
        asked = ("--bucket", self.world.url, "--table", self.table.as_uri(), "--decrypt")
        given = options or ("--master-key-file", str(self.key))
        return subprocess.run(
            [*COMMAND, "export", "--json", *asked, "--master", _WORKERS, *given],
            capture_output=True,
            timeout=300,
            check=False,
            env=environment,
        )

    def rows(self) -> list[tuple[str, bytes, dict[str, str]]]:
        found = DeltaTable(self.table).to_pyarrow_table().to_pylist()
        return sorted(
            (row["store"], row["value"], dict(row["headers"] or ()))
            for row in found
            if row["operation"] == "set"
        )


class Watch:
    """Looks at every file that Spark makes, while it is there, for secrets."""

    def __init__(self, folder: Path, secrets: dict[str, bytes]) -> None:
        self._folder = folder
        self._secrets = secrets
        self.found: set[tuple[str, str]] = set()
        self.seen: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._look()

    def _run(self) -> None:
        while not self._ended.wait(0.2):
            self._look()

    def _look(self) -> None:
        for root, _, names in os.walk(self._folder):
            for name in names:
                path = Path(root, name)
                try:
                    # Those are the same for everybody.
                    if path.suffix == ".jar" or path.stat().st_size > 20_000_000:
                        continue
                    body = path.read_bytes()
                except OSError:
                    continue  # It is gone already.
                where = str(path.relative_to(self._folder))
                self.seen.add(where)
                # A file of the table that is being written is none yet.
                whole = path.suffix != ".parquet"
                for what, secret in self._secrets.items():
                    if secret in body or (whole and holds(body, secret)):
                        self.found.add((what, where))


def forms(name: str, secret: bytes) -> dict[str, bytes]:
    """Return a secret as it could stand in a file."""
    return {
        name: secret,
        f"{name} in hex": secret.hex().encode(),
        f"{name} in Base64": base64.b64encode(secret),
        f"{name} in Python": repr(secret)[2:-1].encode(),
    }


@pytest.fixture
def exporting(tmp_path: Path, spark: SparkSession) -> Iterator[Exporting]:
    """The session of all tests only shows that there is a Java."""
    found = Exporting(tmp_path)
    yield found
    found.world.close()


def test_keys_reach_workers_by_their_files_and_nothing_that_spark_keeps_has_one(
    exporting: Exporting,
) -> None:
    exporting.write(SECRET, b"another")
    record = exporting.registry.record("acme")
    data_key = record.keys[0].key("acme", {MASTER.id: MASTER})
    secrets = {**forms("the master key", MASTER.key), **forms("the data key", data_key)}
    secrets |= forms("a value", SECRET)
    with Watch(exporting.spark, secrets) as watch:
        done = exporting.run()
    assert done.returncode == 0, done.stderr.decode()
    assert exporting.rows() == [
        ("notes", b"another", {"by": "ada"}), ("notes", SECRET, {"by": "ada"}),
        ("plain", b"in clear", {}),
    ]  # fmt: skip
    for folder in ("events", "home/work"):
        assert any(each.startswith(folder) for each in watch.seen), (folder, watch.seen)
    # A worker writes its files of the table, which is in clear, in its temporary folder first.
    beyond = {each for each in watch.found if not each[1].startswith("tmp/holdfast-")}
    assert beyond == set()
    assert not any("key" in what for what, _ in watch.found)
    assert not [*(exporting.spark / "tmp").glob("holdfast-*")], "and they leave nothing there"


def test_a_wrong_or_missing_key_is_one_line_each_and_others_are_exported(
    exporting: Exporting,
) -> None:
    exporting.write(SECRET)
    exporting.key.unlink()
    missing = exporting.run()
    [line] = missing.stderr.decode().splitlines()
    assert missing.returncode != 0 and '"invalid_argument"' in line and "master.key" in line
    assert not exporting.table.exists()
    exporting.write_key(bytes(32))
    wrong = exporting.run("--master-key-command", f"cat {exporting.key}")
    lines = wrong.stderr.decode().splitlines()
    told = [each for each in lines if each.startswith("damaged: ")]
    assert wrong.returncode == 1 and len(told) == 1, lines
    assert "'notes' of tenant 'acme'" in told[0] and MASTER.id in told[0]
    assert not any("Traceback" in each for each in lines)
    assert [row[0] for row in exporting.rows()] == ["plain"]


def test_workers_without_the_key_say_so_in_one_line_and_look_again_with_the_next_export(
    exporting: Exporting, spark: SparkSession
) -> None:
    """On workers that live on, as those of a session of a notebook do."""
    exporting.write(SECRET)
    table = exporting.table.as_uri()

    def keys() -> ExportKeys:
        return ExportKeys.of(exporting.registry, [exporting.key], [])

    lacking = keys()
    exporting.key.unlink()
    with pytest.raises(SparkFailedError) as told:
        export(spark, exporting.world.url, table, keys=lacking)
    assert "\n" not in str(told.value) and "master.key" in str(told.value)
    assert not DeltaTable.is_deltatable(table)
    exporting.write_key(bytes(32))
    [damage] = export(spark, exporting.world.url, table, keys=keys()).damaged
    assert MASTER.id in damage
    exporting.write_key(MASTER.key)
    assert export(spark, exporting.world.url, table, keys=keys()).damaged == []
    assert [row[:2] for row in exporting.rows()] == [("notes", SECRET), ("plain", b"in clear")]
    exporting.key.unlink()
    with pytest.raises(InvalidArgumentError, match=r"master\.key"):
        keys()

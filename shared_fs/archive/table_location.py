"""Where a table is, in a folder or under a prefix of an S3 bucket, and the operations on its files.

A table's files are plain files that any engine can read, so they do not go through
`shared_fs/bucket/bucket.py`, which adds a header and checksums. Addresses and credentials
are the same: `file:///FOLDER` or `s3://BUCKET/PREFIX?endpoint=URL&region=NAME`,
credentials from the environment.

A file appears whole or not at all, under a name that is used once.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from holdfast.protocol.errors import InvalidArgumentError
from holdfast.shared_fs.disk.disk import Disk

#: The table of a bucket, unless another one is given.
DEFAULT_TABLE: Final = "tables/changes"
#: Enough for a commit, a checkpoint, and concurrent commits of others.
_SYNCED_COMMITS: Final = 8
_MISSING: Final = frozenset(["404", "NoSuchKey", "NoSuchBucket"])
_TAKEN: Final = frozenset(["PreconditionFailed", "ConditionalRequestConflict"])
_OPTIONS: Final = frozenset(["endpoint", "region"])


class TableFile(NamedTuple):
    """A file of the table's folder. `modified` is milliseconds since the epoch."""

    path: str
    size_bytes: int
    modified: int


@dataclass(frozen=True)
class TableLocation:
    """The place of a table; paths are relative to it. It is pickled
    for executors as its URL alone."""

    url: str

    def __post_init__(self) -> None:
        """Check the URL. Raises InvalidArgumentError."""
        parts = urlsplit(self.url)
        options = parse_qs(parts.query)
        if parts.scheme == "file":
            if parts.netloc not in ("", "localhost") or parts.query or not parts.path:
                raise InvalidArgumentError(argument="table", reason="write file:///FOLDER")
        elif parts.scheme != "s3" or not parts.netloc or options.keys() - _OPTIONS:
            raise InvalidArgumentError(
                argument="table", reason="write file:///FOLDER or s3://BUCKET/PREFIX"
            )
        if "@" in parts.netloc or "@" in urlsplit(self._option("endpoint") or "").netloc:
            raise InvalidArgumentError(
                argument="table", reason="the address must not contain credentials"
            )

    @property
    def is_s3(self) -> bool:
        return self.url.startswith("s3:")

    @property
    def folder(self) -> Path:
        """The folder of a table that is not on S3."""
        return Path(unquote(urlsplit(self.url).path))

    @property
    def uri(self) -> str:
        """The address as other tools write it, without options."""
        return self.url.partition("?")[0].rstrip("/") if self.is_s3 else str(self.folder)

    @property
    def delta_options(self) -> dict[str, str] | None:
        """The storage options that the package deltalake needs for this place."""
        if not self.is_s3:
            return None
        options = {"aws_conditional_put": "etag"}
        if region := self._option("region") or os.environ.get("AWS_REGION"):
            options["AWS_REGION"] = region
        if endpoint := self._option("endpoint"):
            options["AWS_ENDPOINT_URL"] = endpoint
            options["AWS_ALLOW_HTTP"] = str(endpoint.startswith("http:")).lower()
        return options

    def put_file(self, source: Path, path: str) -> None:
        """Move a local file to `path`, durably. Raises OSError, boto3's errors."""
        if self.is_s3:
            # A large file is uploaded in parts, several at once.
            self._client.upload_file(str(source), self._bucket, self._key(path))
            source.unlink()
            return
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.tmp")
        shutil.move(source, draft)
        with draft.open("rb+") as file:
            os.fsync(file.fileno())
        draft.rename(target)
        # The folders above may be new too.
        for folder in (target.parent, *target.parent.relative_to(self.folder).parents):
            Disk().sync_directory(self.folder / folder)

    def put_new(self, path: str, body: bytes) -> bool:
        """Put a small file at `path`, durably. Return False if another one is there. Raises
        OSError, boto3's errors."""
        if self.is_s3:
            try:
                self._client.put_object(
                    Bucket=self._bucket, Key=self._key(path), Body=body, IfNoneMatch="*"
                )
            except self._client.exceptions.ClientError as error:
                if error.response["Error"]["Code"] not in _TAKEN:
                    raise
                # The answer to an earlier try may have been lost.
                return self.read(path) == body
            return True
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
        try:
            with draft.open("wb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            os.link(draft, target)
        except FileExistsError:
            return False
        finally:
            draft.unlink(missing_ok=True)
        Disk().sync_directory(target.parent)
        return True

    def sync_log(self) -> None:
        """Make the newest commits of a table in a folder durable, which deltalake does not do.

        Raises OSError.
        """
        if self.is_s3:
            return
        log = self.folder / "_delta_log"
        newest = sorted((path for path in log.iterdir() if path.is_file()), reverse=True)
        for path in [log / "_last_checkpoint", *newest[:_SYNCED_COMMITS]]:
            # There may be no checkpoint, and an erasure may remove the log before its own.
            with contextlib.suppress(FileNotFoundError), path.open("rb+") as file:
                os.fsync(file.fileno())
        for folder in (log, self.folder, self.folder.parent):
            Disk().sync_directory(folder)

    def read(self, path: str) -> bytes | None:
        """Return a small file; None if it does not exist."""
        if not self.is_s3:
            try:
                return (self.folder / path).read_bytes()
            except FileNotFoundError:
                return None
        try:
            found = self._client.get_object(Bucket=self._bucket, Key=self._key(path))
        except self._client.exceptions.NoSuchKey:
            return None
        body: bytes = found["Body"].read()
        return body

    def get_file(self, path: str, target: Path) -> Path:
        """Return a local file with the content of `path`: the file
        itself, or a copy at `target`. Raises FileNotFoundError if S3 does not have it, boto3's
        errors."""
        if not self.is_s3:
            return self.folder / path
        try:
            self._client.download_file(self._bucket, self._key(path), str(target))
        except self._client.exceptions.ClientError as error:
            if error.response["Error"]["Code"] in _MISSING:
                raise FileNotFoundError(f"{self.uri}/{path}") from error
            raise
        return target

    def to_read_parts(self, path: str) -> Path | io.RawIOBase:
        """Return something that parts of a file can be read from.

        It is the local path, or a file object whose reads are range requests to S3 and which needs
        no closing. Raises OSError, FileNotFoundError if S3 does not have the file.
        """
        if not self.is_s3:
            return self.folder / path
        return _S3File(self._client, self._bucket, self._key(path))

    def list(self, prefix: str = "") -> Iterator[TableFile]:
        """Yield the files below `prefix`, a folder of the table."""
        if not self.is_s3:
            for path in sorted((self.folder / prefix).rglob("*")):
                if path.is_file():
                    found = path.stat()
                    name = str(path.relative_to(self.folder))
                    yield TableFile(name, found.st_size, found.st_mtime_ns // 1_000_000)
            return
        start = self._key(prefix and f"{prefix}/")
        pages = self._client.get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=self._bucket, Prefix=start):
            for one in page.get("Contents", ()):
                modified = int(one["LastModified"].timestamp() * 1000)
                yield TableFile(one["Key"].removeprefix(self._key("")), one["Size"], modified)

    def size_of(self, path: str) -> int | None:
        """Return the size of a file in bytes; None if it does not exist."""
        if not self.is_s3:
            try:
                return (self.folder / path).stat().st_size
            except FileNotFoundError:
                return None
        try:
            found = self._client.head_object(Bucket=self._bucket, Key=self._key(path))
        except self._client.exceptions.ClientError as error:
            if error.response["Error"]["Code"] in _MISSING:
                return None
            raise
        return int(found["ContentLength"])

    def old_version_count(self, prefix: str) -> int:
        """Return how many versions of removed or replaced files below `prefix` a versioned bucket
        keeps."""
        if not self.is_s3:
            return 0
        start = self._key(prefix and f"{prefix}/")
        pages = self._client.get_paginator("list_object_versions")
        return sum(
            not one["IsLatest"]
            for page in pages.paginate(Bucket=self._bucket, Prefix=start)
            for one in page.get("Versions", ())
        )

    def delete(self, path: str) -> None:
        """Delete a file; a missing one is fine."""
        if self.is_s3:
            self._client.delete_object(Bucket=self._bucket, Key=self._key(path))
        else:
            (self.folder / path).unlink(missing_ok=True)

    @property
    def _client(self) -> Any:
        return _s3_client(self._option("endpoint"), self._option("region"))

    @property
    def _bucket(self) -> str:
        return urlsplit(self.url).netloc

    def _key(self, path: str) -> str:
        prefix = unquote(urlsplit(self.url).path).strip("/")
        return f"{prefix}/{path}" if prefix else path

    def _option(self, name: str) -> str | None:
        return parse_qs(urlsplit(self.url).query).get(name, [None])[-1]

    def __reduce__(self) -> tuple[type[TableLocation], tuple[str]]:
        return TableLocation, (self.url,)


def default_table(bucket_url: str) -> str:
    """Return the URL of a bucket's own table."""
    parts = urlsplit(bucket_url)
    path = f"{parts.path.rstrip('/')}/{quote(DEFAULT_TABLE)}"
    query = urlencode(parse_qs(parts.query), doseq=True)
    return parts._replace(path=path, query=query).geturl()


class _S3File(io.RawIOBase):
    """An S3 object that is read in ranges, with one request for each read."""

    def __init__(self, client: Any, bucket: str, key: str) -> None:
        self._client = client
        self._bucket = bucket
        self._key = key
        self._at = 0
        self._size_bytes = int(self._ask("head_object")["ContentLength"])

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size_bytes}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._size_bytes)
        if end <= self._at:
            return 0
        found = self._ask("get_object", Range=f"bytes={self._at}-{end - 1}")
        count = len(found)
        buffer[:count] = found
        self._at += count
        return count

    def _ask(self, request: str, **options: str) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            found = getattr(self._client, request)(Bucket=self._bucket, Key=self._key, **options)
            return found["Body"].read() if request == "get_object" else found
        except ClientError as error:
            number = errno.ENOENT if error.response["Error"]["Code"] in _MISSING else errno.EIO
            raise OSError(number, str(error), self._key) from error
        except BotoCoreError as error:
            raise OSError(errno.EIO, str(error), self._key) from error


@lru_cache(maxsize=8)
def _s3_client(endpoint: str | None, region: str | None) -> Any:
    """Return the S3 client that all tasks of this process share: making
    one takes a quarter of a second."""
    # Imported here, as in `open_bucket`: a table in a folder does not need it.
    import boto3
    from botocore.config import Config

    config = Config(
        connect_timeout=5.0,
        read_timeout=60.0,
        retries={"mode": "standard", "total_max_attempts": 5},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path" if endpoint else "auto"},
    )
    return boto3.session.Session().client(
        "s3", endpoint_url=endpoint, region_name=region, config=config
    )

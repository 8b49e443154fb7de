"""A bucket on S3, or on any server that speaks its protocol, through boto3.

boto3's own retries are off: they would silently repeat a conditional write, and the answer to the
repetition looks like another writer's success. Checksums are sent only where S3 requires them,
since not every endpoint knows them; the bucket keeps its own sha256. A hanging request ends by its
timeouts. Parts of an upload that a crash leaves behind are invisible; the store's lifecycle rule
(AbortIncompleteMultipartUpload) removes them.

Credentials are those that boto3 finds in the environment of the process.
A URL with credentials is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from io import BufferedReader, BytesIO
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ProxyConnectionError,
    SSLError,
)
from botocore.parsers import ResponseParserError

from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.limits import MIB
from holdfast.shared_fs.bucket.bucket_backend import (
    MAX_KEY_BYTES,
    Backend,
    BucketUpload,
    ByteRange,
    Condition,
    ListedObject,
    NewObject,
    ObjectHead,
    OldVersion,
    Page,
    PreconditionError,
    Reading,
    TransientError,
    UploadGoneError,
)
from holdfast.shared_fs.bucket.bucket_errors import (
    BucketRefusedError,
    ObjectMissingError,
    RequestUnsupportedError,
)

#: S3's limit for a key, including the prefix.
_S3_KEY_BYTES: Final = 1024
_CONNECT_SECONDS: Final = 5.0
#: Between two arrivals of bytes, not for a whole body.
_READ_SECONDS: Final = 20.0
_CHUNK_BYTES: Final = MIB
_OPTIONS: Final = ("endpoint", "region")
_ADVICE: Final = (
    "give AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or another source that boto3 knows, "
    "in the environment"
)

#: Answers that mean "not now", and that nothing was done.
_NOT_NOW: Final = frozenset(
    ["SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests"]
) | frozenset(["ConditionalRequestConflict", "OperationAborted", "RequestTimeout"])


class S3Backend(Backend):
    """Objects below a prefix of one S3 bucket."""

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint: str | None = None,
        region: str | None = None,
        profile: str | None = None,
        connections: int = 32,
    ) -> None:
        """`profile` names where in boto3's configuration the credentials are.

        Raises BucketRefusedError if boto3 cannot make a client for this address."""
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        if len(self._prefix.encode()) > _S3_KEY_BYTES - MAX_KEY_BYTES:
            raise InvalidArgumentError(
                argument="bucket",
                reason=f"a prefix has at most {_S3_KEY_BYTES - MAX_KEY_BYTES} bytes",
            )
        self.name = f"s3://{bucket}/{self._prefix}"
        config = Config(
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=_READ_SECONDS,
            retries={"total_max_attempts": 1},
            max_pool_connections=connections,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            signature_version="s3v4",
            # Few endpoints other than S3's have a host name for each bucket.
            s3={"addressing_style": "path" if endpoint else "auto"},
        )
        with self._errors(""):
            try:
                self._client: Any = boto3.session.Session(profile_name=profile).client(
                    "s3", endpoint_url=endpoint, region_name=region, config=config
                )
            except ValueError as error:
                raise self._refused(str(error)) from error

    @classmethod
    def from_url(cls, url: str, *, connections: int = 32, profiles: bool = False) -> S3Backend:
        """Return the backend of `s3://BUCKET/PREFIX?endpoint=URL&region=NAME`, with `profiles`
        also of one with `&profile=NAME`.

        Raises InvalidArgumentError, BucketRefusedError.
        """
        parts = urlsplit(url)
        options = parse_qs(parts.query)
        endpoint = options.get("endpoint", [None])[-1]
        # First of all, so that no other error can repeat the URL.
        if "@" in parts.netloc or "@" in urlsplit(endpoint or "").netloc:
            raise InvalidArgumentError(
                argument="bucket", reason=f"the address must not contain credentials: {_ADVICE}"
            )
        known = (*_OPTIONS, "profile") if profiles else _OPTIONS
        if unknown := options.keys() - known:
            raise InvalidArgumentError(
                argument="bucket",
                reason=f"unknown option {min(unknown)!r}; use {' or '.join(known)}",
            )
        if not parts.netloc:
            raise InvalidArgumentError(argument="bucket", reason="write s3://BUCKET/PREFIX")
        return cls(
            parts.netloc,
            unquote(parts.path),
            endpoint=endpoint,
            region=options.get("region", [None])[-1],
            profile=options.get("profile", [None])[-1],
            connections=connections,
        )

    def put(self, key: str, body: bytes, metadata: Mapping[str, str], condition: Condition) -> str:
        with self._errors(key):
            answer = self._client.put_object(
                **self._object(key), Body=body, Metadata=dict(metadata), **_conditions(condition)
            )
        return _version(answer)

    def put_file(
        self,
        key: str,
        file: BufferedReader | BytesIO,
        metadata: Mapping[str, str],
        condition: Condition,
    ) -> str:
        with self._errors(key):
            answer = self._client.put_object(
                **self._object(key), Body=file, Metadata=dict(metadata), **_conditions(condition)
            )
        return _version(answer)

    @contextmanager
    def read(self, key: str, wanted: ByteRange | None = None) -> Iterator[Reading]:
        try:
            with self._errors(key):
                answer = self._client.get_object(**self._object(key), **_range(wanted))
        except _BeyondTheEndError:
            # S3 answers this to every range of an empty object, without metadata.
            yield Reading(self.head(key), iter(()))
            return
        body = answer["Body"]

        def chunks() -> Iterator[bytes]:
            with self._errors(key):
                yield from body.iter_chunks(_CHUNK_BYTES)

        try:
            yield Reading(_head(answer), chunks())
        finally:
            body.close()

    def head(self, key: str) -> ObjectHead:
        with self._errors(key):
            return _head(self._client.head_object(**self._object(key)))

    def delete(self, key: str, expected_version: str | None) -> None:
        condition = {} if expected_version is None else {"IfMatch": expected_version}
        try:
            with self._errors(key):
                self._client.delete_object(**self._object(key), **condition)
        except ObjectMissingError:
            return

    def list_page(self, prefix: str, start_after: str, limit: int) -> Page:
        after = {"StartAfter": self._prefix + start_after} if start_after else {}
        with self._errors(prefix):
            answer = self._client.list_objects_v2(
                Bucket=self._bucket, Prefix=self._prefix + prefix, MaxKeys=limit, **after
            )
        objects = [
            ListedObject(
                one["Key"].removeprefix(self._prefix),
                one["Size"],
                _version(one),
                _milliseconds(one["LastModified"]),
            )
            for one in answer.get("Contents", [])
        ]
        return Page(objects, more=bool(objects) and answer["IsTruncated"])

    def old_versions(self, prefix: str) -> Sequence[OldVersion]:
        found: list[OldVersion] = []
        marker: dict[str, str] = {}
        while True:
            with self._errors(prefix):
                answer = self._client.list_object_versions(
                    Bucket=self._bucket, Prefix=self._prefix + prefix, **marker
                )
            found += [
                OldVersion(one["Key"].removeprefix(self._prefix), one["Size"])
                for one in answer.get("Versions", [])
                if not one["IsLatest"]
            ]
            if not answer.get("IsTruncated"):
                return found
            marker = {
                "KeyMarker": answer["NextKeyMarker"],
                "VersionIdMarker": answer["NextVersionIdMarker"],
            }

    def begin_upload(self, key: str, metadata: Mapping[str, str]) -> BucketUpload:
        with self._errors(key):
            answer = self._client.create_multipart_upload(
                **self._object(key), Metadata=dict(metadata)
            )
        return BucketUpload(key, answer["UploadId"])

    def put_part(self, upload: BucketUpload, number: int, offset: int, body: bytes) -> str:
        with self._errors(upload.key):
            answer = self._client.upload_part(
                **self._object(upload.key), UploadId=upload.id, PartNumber=number, Body=body
            )
        return str(answer["ETag"])

    def complete_upload(
        self, upload: BucketUpload, tags: Sequence[str], condition: Condition
    ) -> str:
        parts = [{"PartNumber": at + 1, "ETag": tag} for at, tag in enumerate(tags)]
        with self._errors(upload.key):
            answer = self._client.complete_multipart_upload(
                **self._object(upload.key),
                UploadId=upload.id,
                MultipartUpload={"Parts": parts},
                **_conditions(condition),
            )
        return _version(answer)

    def abort_upload(self, upload: BucketUpload) -> None:
        try:
            with self._errors(upload.key):
                self._client.abort_multipart_upload(**self._object(upload.key), UploadId=upload.id)
        except UploadGoneError:
            return

    def close(self) -> None:
        self._client.close()

    def _object(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + key}

    def _refused(self, reason: str) -> BucketRefusedError:
        return BucketRefusedError(bucket=self.name, reason=reason)

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        """Translate boto3's errors. None of their texts contains a secret."""
        try:
            yield
        except ClientError as error:
            raise self._answered(key, error) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise self._refused(f"{error}: {_ADVICE}") from error
        except (ConnectTimeoutError, EndpointConnectionError, ProxyConnectionError) as error:
            raise TransientError(str(error), uncertain=False) from error
        except (
            *(HTTPClientError, IncompleteReadError, ResponseParserError, SSLError),
            OSError,
        ) as error:
            raise TransientError(str(error), uncertain=True) from error
        except BotoCoreError as error:
            raise self._refused(str(error)) from error

    def _answered(self, key: str, error: ClientError) -> Exception:
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        text = f"{error.operation_name}: {status} {code} {error.response['Error'].get('Message')}"
        if code == "NoSuchUpload":
            return UploadGoneError(text)
        if code == "NoSuchBucket":
            return self._refused(f"{text}: create the bucket first")
        if code in _NOT_NOW or status in (409, 429):
            return TransientError(text, uncertain=False)
        if code == "NotImplemented" or status == 501:
            return RequestUnsupportedError(bucket=self.name, reason=text)
        if status >= 500:
            return TransientError(text, uncertain=True)
        if status == 412:
            return PreconditionError(text)
        if status == 416:
            return _BeyondTheEndError(text)
        if status == 404:
            if error.operation_name in ("PutObject", "CompleteMultipartUpload"):
                return PreconditionError(text)
            return ObjectMissingError(key=key)
        return self._refused(text)


class _BeyondTheEndError(Exception):
    """A range begins at or after the end of its object."""


def _conditions(condition: Condition) -> dict[str, str]:
    if isinstance(condition, NewObject):
        return {"IfNoneMatch": "*"}
    return {"IfMatch": condition.version.strip('"') if condition.bare else condition.version}


def _range(wanted: ByteRange | None) -> dict[str, str]:
    if wanted is None:
        return {}
    if wanted.start is None:
        return {"Range": f"bytes=-{wanted.length}"}
    return {"Range": f"bytes={wanted.start}-{wanted.start + wanted.length - 1}"}


def _head(answer: Mapping[str, Any]) -> ObjectHead:
    size_bytes = answer["ContentLength"]
    if found := re.fullmatch(r"bytes \d+-\d+/(\d+)", answer.get("ContentRange") or ""):
        size_bytes = int(found[1])
    return ObjectHead(
        size_bytes, _version(answer), _milliseconds(answer["LastModified"]), answer["Metadata"]
    )


def _version(answer: Mapping[str, Any]) -> str:
    return str(answer["ETag"])


def _milliseconds(time: datetime) -> int:
    return int(time.timestamp() * 1000)

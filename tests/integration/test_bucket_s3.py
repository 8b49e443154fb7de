"""The S3 backend: addresses, credentials, what answers and broken connections mean."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse

from holdfast.protocol.errors import InvalidArgumentError
from holdfast.shared_fs.bucket import bucket_s3, bucket_writing
from holdfast.shared_fs.bucket.bucket import Bucket, open_bucket
from holdfast.shared_fs.bucket.bucket_backend import (
    NewObject,
    PreconditionError,
    TransientError,
    UploadGoneError,
    Version,
)
from holdfast.shared_fs.bucket.bucket_capabilities import Ways
from holdfast.shared_fs.bucket.bucket_errors import (
    BucketRefusedError,
    NoBucketError,
    ObjectConflictError,
    ObjectExistsError,
    ObjectMissingError,
    RequestUnsupportedError,
)
from holdfast.shared_fs.bucket.bucket_s3 import S3Backend
from holdfast.shared_fs.snapshots.existing_bucket import existing_bucket
from holdfast.shared_fs.snapshots.manifest import open_manifests
from tests.support.moto_server import BUCKET, REGION
from tests.support.s3_server import running_s3


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_s3() as url:
        yield url


class Body:
    """What an answer's body is made of."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def stream(self) -> Iterator[bytes]:
        yield self._content


def answer_with(backend: S3Backend, status: int, code: str) -> list[str]:
    """Let each request get this answer instead of being sent; returns the list of them."""
    asked: list[str] = []

    def answer(request: Any, **_: Any) -> AWSResponse:
        asked.append(request.method)
        body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
        return AWSResponse(request.url, status, {}, Body(body))

    backend._client.meta.events.register("before-send.s3", answer)
    return asked


@pytest.mark.parametrize(
    ("status", "code", "uncertain"),
    [
        (503, "SlowDown", False),
        (429, "TooManyRequests", False),
        (409, "ConditionalRequestConflict", False),
        (409, "OperationAborted", False),
        (400, "RequestTimeout", False),
        (500, "InternalError", True),
        (502, "BadGateway", True),
        (503, "ServiceUnavailable", True),
        (504, "GatewayTimeout", True),
    ],
)
def test_an_answer_that_means_not_now_is_one_transient_try(
    url: str, status: int, code: str, uncertain: bool
) -> None:
    backend = S3Backend.from_url(url)
    asked = answer_with(backend, status, code)
    with pytest.raises(TransientError) as error:
        backend.put("a", b"", {}, NewObject())
    assert error.value.uncertain is uncertain
    assert asked == ["PUT"]


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (412, "PreconditionFailed", PreconditionError),
        (404, "NoSuchKey", PreconditionError),
        (404, "NoSuchBucket", BucketRefusedError),
        (403, "AccessDenied", BucketRefusedError),
        (403, "RequestTimeTooSkewed", BucketRefusedError),
        (400, "InvalidRequest", BucketRefusedError),
        (501, "NotImplemented", RequestUnsupportedError),
    ],
)
def test_an_answer_to_a_conditional_put_says_what_it_means(
    url: str, status: int, code: str, expected: type[Exception]
) -> None:
    backend = S3Backend.from_url(url)
    answer_with(backend, status, code)
    with pytest.raises(expected):
        backend.put("a", b"", {}, Version('"x"'))


def test_an_upload_that_is_gone_is_told(url: str) -> None:
    backend = S3Backend.from_url(url)
    upload = backend.begin_upload("gone", {})
    backend.abort_upload(upload)
    backend.abort_upload(upload)
    # moto answers 500 to what follows; S3 does not.
    answer_with(backend, 404, "NoSuchUpload")
    with pytest.raises(UploadGoneError):
        backend.put_part(upload, 1, 0, b"x")
    with pytest.raises(UploadGoneError):
        backend.complete_upload(upload, ['"x"'], NewObject())


def test_a_bucket_that_does_not_exist_is_refused_with_advice(url: str) -> None:
    backend = S3Backend.from_url(url.replace(BUCKET, "no-such-bucket"))
    with pytest.raises(BucketRefusedError, match="create the bucket first"):
        backend.put("a", b"", {}, NewObject())
    with pytest.raises(BucketRefusedError, match="create the bucket first"):
        backend.list_page("", "", 10)


def test_without_credentials_it_says_where_they_are_looked_for(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    with pytest.raises(BucketRefusedError, match="AWS_ACCESS_KEY_ID"):
        S3Backend.from_url(url).put("a", b"", {}, NewObject())


def test_no_error_shows_a_secret(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    backend = S3Backend.from_url(url)
    answer_with(backend, 403, "SignatureDoesNotMatch")
    with pytest.raises(BucketRefusedError) as refused:
        backend.put("a", b"", {}, NewObject())
    assert "very-secret" not in str(refused.value) + repr(refused.value.fields)


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:very-secret@bucket/prefix",
        "s3://bucket/prefix?endpoint=http://key:very-secret@127.0.0.1:9000",
        "s3://bucket/prefix?secret=very-secret",
        "s3:///prefix",
        "s3://bucket/" + "x" * 130,
        *("http://bucket", "bucket", "", "file://host/path", "file:///path?x=1", "file:relative"),
    ],
)
def test_an_address_that_is_no_buckets_is_refused_without_secrets(url: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        open_bucket(url)
    assert "very-secret" not in str(refused.value)


def test_an_endpoint_that_is_no_address_is_refused() -> None:
    with pytest.raises(BucketRefusedError):
        open_bucket(f"s3://bucket?endpoint=nonsense&region={REGION}")


def test_prefixes_keep_buckets_apart(url: str) -> None:
    bare, _, query = url.partition("?")
    one, other = (open_bucket(f"{bare}/apart/{name}/?{query}") for name in ("one", "other"))
    one.try_out()
    version = one.put_new("key", b"1")
    assert list(other.list()) == []
    other.put_new("key", b"2")
    [listed] = one.list()
    assert (listed.key, listed.version) == ("key", version)
    assert one.get("key").body == b"1"


def test_a_bucket_in_other_ways_sends_bare_versions_and_whole_files(
    url: str, tmp_path: Path
) -> None:
    backend = S3Backend.from_url(url.replace("?", "/ways?", 1))
    sent: list[tuple[str, str | None]] = []

    def note(request: Any, **_: Any) -> None:
        condition = request.headers.get("If-Match")
        text = condition.decode() if isinstance(condition, bytes) else condition
        sent.append((request.method, text))

    backend._client.meta.events.register("before-send.s3", note)
    bucket = Bucket(backend, ways=Ways(bare_versions=True, uploads_in_parts=False))
    first = bucket.put_new("manifest", b"1")
    with contextlib.suppress(ObjectConflictError):  # Not every server takes it without quotes.
        bucket.replace("manifest", b"2", first)
    assert sent[1] == ("PUT", first.strip('"')) and first.startswith('"')
    sent.clear()
    path = tmp_path / "file"
    path.write_bytes(bytes(bucket_writing.PART_BYTES + 1))
    version = bucket.put_new_file("snapshot", path)
    assert sent == [("PUT", None)]
    head = bucket.get_to_file("snapshot", tmp_path / "back")
    assert (head.size_bytes, head.version) == (bucket_writing.PART_BYTES + 1, version)
    with pytest.raises(ObjectExistsError):
        bucket.put_new_file("snapshot", path)
    bucket.close()


def test_boto3_is_imported_only_for_s3() -> None:
    program = "import sys, holdfast.shared_fs.bucket.bucket; print('boto3' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.strip() == "False"


@contextlib.contextmanager
def server_that(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Take connections on loopback, and do with each what `answer` does, which gets the request."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(30)
                connection.recv(1 << 16)
                answer(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"s3://{BUCKET}?endpoint=http://127.0.0.1:{listener.getsockname()[1]}&region={REGION}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def _wait(done: threading.Event) -> None:
    assert done.wait(30)


@pytest.fixture
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setattr(bucket_s3, "_READ_SECONDS", 0.3)


@pytest.mark.usefixtures("_credentials")
def test_a_server_that_never_answers_is_given_up_as_uncertain() -> None:
    done = threading.Event()
    with server_that(lambda connection: _wait(done)) as url:
        backend = S3Backend.from_url(url)
        with pytest.raises(TransientError) as error:
            backend.put("a", b"", {}, NewObject())
        done.set()
        backend.close()
    assert error.value.uncertain


@pytest.mark.usefixtures("_credentials")
def test_a_connection_closed_without_an_answer_is_uncertain() -> None:
    with server_that(lambda connection: None) as url:
        backend = S3Backend.from_url(url)
        with pytest.raises(TransientError) as error:
            backend.put("a", b"", {}, NewObject())
        backend.close()
    assert error.value.uncertain


@pytest.mark.usefixtures("_credentials")
def test_a_server_that_is_not_there_did_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    backend = S3Backend.from_url(f"s3://{BUCKET}?endpoint=http://127.0.0.1:{port}&region={REGION}")
    with pytest.raises(TransientError) as error:
        backend.put("a", b"", {}, NewObject())
    backend.close()
    assert not error.value.uncertain


@pytest.mark.usefixtures("_credentials")
@pytest.mark.parametrize("then", ["close", "hang"])
def test_a_body_that_breaks_off_is_transient_and_never_short(then: str) -> None:
    done = threading.Event()

    def answer(connection: socket.socket) -> None:
        connection.sendall(
            b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\nETag: "x"\r\n'
            b"Last-Modified: Sat, 01 Jan 2028 00:00:00 GMT\r\n\r\nhalf"
        )
        if then == "hang":
            done.wait(30)

    with server_that(answer) as url:
        backend = S3Backend.from_url(url)
        with pytest.raises(TransientError), backend.read("a") as reading:
            list(reading.chunks)
        done.set()
        backend.close()


def test_an_answer_that_is_no_s3s_is_no_success(url: str) -> None:
    backend = S3Backend.from_url(url)
    answer_with(backend, 404, "NoSuchKey")
    with pytest.raises(ObjectMissingError):
        backend.head("a")


def test_an_empty_s3_bucket_is_no_cluster_s_and_stays_empty(url: str) -> None:
    bucket = S3Backend.from_url(url)
    mistyped = url.replace(BUCKET, f"{BUCKET}/typo", 1)
    with pytest.raises(NoBucketError):
        existing_bucket(mistyped)
    assert [one.key for one in bucket.list_page("typo", "", 10).objects] == []
    open_manifests(open_bucket(mistyped))
    existing_bucket(mistyped).close()
    with pytest.raises(BucketRefusedError, match="create the bucket first"):
        existing_bucket(url.replace(BUCKET, "no-such-bucket", 1))


def test_a_tenant_s_bucket_is_used_with_the_credentials_of_its_profile(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"
    file.write_text("[acme]\naws_access_key_id = acmes\naws_secret_access_key = secret-of-acme\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    backend = S3Backend.from_url(f"{url}&profile=acme", profiles=True)
    assert backend._client._request_signer._credentials.access_key == "acmes"
    assert "secret" not in backend.name
    with pytest.raises(BucketRefusedError, match=r"profile \(zeta\) could not be found"):
        S3Backend.from_url(f"{url}&profile=zeta", profiles=True)
    # The servers' own bucket has no profile: exported tables beside it could not be read with one.
    with pytest.raises(InvalidArgumentError, match="unknown option 'profile'"):
        open_bucket(f"{url}&profile=acme")

"""Events for the audit log that wait for the recorder as objects.

    <data>/audit/                with a shared file system: a bucket in a directory
    <bucket>/audit/...           with `--disk local`

    events/<id>                  a JSON list of events, put once, removed once the log has them

Commands that work on files alone, such as `holdfast token create`, put what they did here, and so
does the auth service, which is no user of the cluster's NATS account. The active coordinator looks
now and then. Calls block.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from holdfast.protocol.access.audit_event import AuditEvent
from holdfast.protocol.errors import BusyError, MalformedFrameError, StoreDamagedError
from holdfast.protocol.limits import MIB
from holdfast.shared_fs.bucket.bucket import Bucket, open_bucket
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.disk.privacy import private_files

#: In seconds: how often the coordinator looks, in a folder and in a bucket, which costs money.
FOLDER_LOOK_SECONDS: Final = 3.0
BUCKET_LOOK_SECONDS: Final = 30.0
#: Of the outbox in a cluster's bucket.
PREFIX: Final = "audit/"
#: Objects that may wait. While no coordinator runs, nobody fills the disk.
MAX_WAITING: Final = 4096
_MAX_OBJECT_BYTES: Final = 4 * MIB


class AuditOutbox:
    """The outbox of a cluster: in `bucket`, or in a folder that is made when it is first needed."""

    def __init__(self, bucket: Bucket | None, folder: Path | None = None) -> None:
        """With a `bucket`, there is no folder."""
        assert (bucket is None) != (folder is None)
        self._bucket = bucket
        self._folder = folder
        self._start = ("" if bucket is None else PREFIX) + "events/"
        self.look_seconds = FOLDER_LOOK_SECONDS if bucket is None else BUCKET_LOOK_SECONDS

    def put(self, events: Sequence[AuditEvent]) -> None:
        """Keep events durably until they are recorded. Raises BusyError if too many wait, and what
        the bucket raises."""
        with private_files():
            if self._bucket is None:
                assert self._folder is not None
                self._bucket = open_bucket(self._folder.absolute().as_uri())
            waiting = sum(1 for _ in self._bucket.list(self._start))
            if waiting >= MAX_WAITING:
                raise BusyError(what="the outbox of the audit log")
            body = json.dumps([event.to_wire() for event in events]).encode()
            self._bucket.put_new(self._start + events[0].id, body)

    def waiting(self) -> Iterator[str]:
        """Yield the keys of what waits, the oldest first. Raises what the bucket raises."""
        if self._bucket is None:
            assert self._folder is not None
            if not Disk().exists(self._folder / "FORMAT"):
                return
            self._bucket = open_bucket(self._folder.absolute().as_uri(), make=False)
        for listed in self._bucket.list(self._start):
            yield listed.key

    def events(self, key: str) -> list[AuditEvent]:
        """Return the events of an object. Raises StoreDamagedError if it has none."""
        assert self._bucket is not None
        body = self._bucket.get(key, limit_bytes=_MAX_OBJECT_BYTES).body
        try:
            return [AuditEvent.from_wire(each) for each in json.loads(body)]
        except (ValueError, TypeError, RecursionError, MalformedFrameError) as error:
            raise StoreDamagedError(store=key, reason=f"it has no events: {error!r:.80}") from error

    def remove(self, key: str) -> None:
        """Remove an object whose events are recorded."""
        assert self._bucket is not None
        self._bucket.delete(key)


def outbox_of(layout: Layout, bucket: Bucket | None) -> AuditOutbox:
    """Return the outbox of a cluster: in `bucket`, with `--disk local`, or beside its data."""
    return AuditOutbox(bucket) if bucket is not None else AuditOutbox(None, layout.audit)

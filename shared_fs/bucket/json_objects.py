"""Small JSON objects of a bucket that several processes change.

A registry keeps what it knows in such objects. Each has a field `count`, since the bodies of an
object must never repeat (see `bucket.py`); the other fields are the registry's own. Calls block.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from holdfast.protocol.errors import StoreDamagedError
from holdfast.protocol.limits import MIB
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_errors import (
    ObjectConflictError,
    ObjectExistsError,
    ObjectMissingError,
)

_MAX_OBJECT_BYTES: Final = 16 * MIB


class JsonObjects:
    """The objects of a bucket under `prefix`. Thread-safe.

    All methods raise what the bucket raises, and StoreDamagedError for an object that is no JSON
    object.
    """

    def __init__(self, bucket: Bucket, prefix: str = "") -> None:
        self._bucket = bucket
        self._prefix = prefix

    def key(self, name: str) -> str:
        """Return the key of an object in the bucket."""
        return self._prefix + name

    def is_still(self, name: str, version: str) -> bool:
        """Tell if an object still has a version. Raises ObjectMissingError."""
        return self._bucket.head(self.key(name)).version == version

    def get(self, name: str) -> tuple[str, dict[str, Any]]:
        """Return the version and the fields of an object. Raises ObjectMissingError."""
        key = self.key(name)
        found = self._bucket.get(key, limit_bytes=_MAX_OBJECT_BYTES)
        try:
            fields = json.loads(found.body)
        except (ValueError, RecursionError) as error:
            raise StoreDamagedError(store=key, reason="it is not JSON") from error
        if type(fields) is not dict:
            raise StoreDamagedError(store=key, reason="it is not a JSON object")
        return found.version, fields

    def change(self, name: str, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the fields of an object durably, whoever else changes it meanwhile. `change` gets
        the fields, none for a new object, and may be called several times."""
        while True:
            try:
                version, fields = self.get(name)
            except ObjectMissingError:
                version, fields = "", {}
            change(fields)
            fields["count"] = fields.get("count", 0) + 1
            body = json.dumps(fields, separators=(",", ":")).encode()
            try:
                if version:
                    self._bucket.replace(self.key(name), body, version)
                else:
                    self._bucket.put_new(self.key(name), body)
                return
            except (ObjectExistsError, ObjectConflictError):
                continue

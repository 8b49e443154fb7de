"""The statements that read the image of a store file; `image_rows.py` executes them.

An image may be of any format: what files of earlier formats do not have is left out, or NULL.
"""

from __future__ import annotations

from typing import Final

from holdfast.protocol.names import StoreKind
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.subject_schema import SUBJECT

#: Since which files have configurations and ttls.
_CONFIG_FORMAT: Final = 2
_META: Final = schema.SELECT_META.removesuffix(" FROM meta WHERE id = 1") + (
    ", created, EXISTS(SELECT 1 FROM changes), {replaced}, {config} FROM meta WHERE id = 1"
)
_REPLACED: Final = {
    StoreKind.STREAM: "EXISTS(SELECT 1 FROM messages WHERE replaced = 1)",
    StoreKind.KV: "0",
}
_SELECT_META: Final = {
    (kind, config): _META.format(replaced=replaced, config=config)
    for kind, replaced in _REPLACED.items()
    for config in ("NULL", "config")
}


def select_meta(kind: StoreKind, version: int) -> str:
    """Return what every image of a format is asked for in one statement. The last columns tell
    whether the file has changes and replaced messages, which most do not, and its configuration."""
    return _SELECT_META[kind, "config" if version >= _CONFIG_FORMAT else "NULL"]


SELECT_APPENDED: Final = (
    "SELECT seq, revision, time, {value}, headers{more} FROM messages"
    " WHERE seq >= ? AND replaced IS NULL ORDER BY seq"
)
SELECT_HELD: Final = (
    "SELECT seq, revision, time, {value}, headers{more} FROM messages"
    " WHERE seq >= ? AND seq <= ? ORDER BY seq"
)
PROBE_APPENDED: Final = (
    "SELECT revision FROM messages WHERE seq >= ? AND replaced IS NULL ORDER BY seq LIMIT 1"
)
PROBE_TIME: Final = (
    "SELECT time FROM messages WHERE seq >= ? AND replaced IS NULL ORDER BY seq LIMIT 1"
)
LAST_APPENDED: Final = (
    "SELECT revision, time FROM messages WHERE seq < ? AND replaced IS NULL"
    " ORDER BY seq DESC LIMIT 1"
)
SELECT_REPLACED: Final = (
    "SELECT seq, revision, time, {value}, headers{more} FROM messages"
    " WHERE replaced = 1 AND revision > ? AND revision <= ? ORDER BY revision"
)
SELECT_ENTRIES: Final = (
    "SELECT key, revision, time, {value}, headers{more} FROM entries"
    " WHERE revision > ? AND revision <= ? ORDER BY revision"
)
SELECT_CHANGES: Final = (
    "SELECT revision, time, change FROM changes"
    " WHERE revision > ? AND revision <= ? ORDER BY revision"
)
HAS_LARGE: Final = "SELECT EXISTS(SELECT 1 FROM bodies WHERE place IS NOT NULL)"
_SUBJECT: Final = ", {subject}"
_BODY: Final = (
    ", body_bytes, CASE WHEN body_bytes IS NOT NULL THEN"
    " (SELECT lower(hex(sha256)) FROM bodies WHERE place = {place}) END"
)
#: Whether the change log tells of a configuration: a packed array whose first element is
#: CHANGE_CONFIGURE.
HAS_CONFIGURED: Final = (
    "SELECT EXISTS(SELECT 1 FROM changes WHERE revision > ? AND substr(change, 2, 1) = x'09')"
)
#: The index that a file gets with its first ttl.
TTL_INDEX: Final = "by_expires"
#: The parts of a large value, in order.
SELECT_BODY: Final = (
    "SELECT data FROM chunks WHERE body = (SELECT id FROM bodies WHERE place = ?) ORDER BY offset"
)


def more_columns(kind: StoreKind, *, subjects: bool, large: bool, ttl: bool) -> str:
    """Return the columns after the headers: none, the subject, or all that an ExportedRow has after
    its value."""
    subject = _SUBJECT.format(subject=SUBJECT if subjects else "NULL")
    if not large and not ttl:
        return subject if subjects else ""
    place = "seq" if kind is StoreKind.STREAM else "key"
    body = _BODY.format(place=place) if large else ", NULL, NULL"
    return f"{subject}{body}, {'expires' if ttl else 'NULL'}"


#: The times of the last rows at or before a revision.
LAST_TIMES: Final = (
    "SELECT max(time) FROM (SELECT time FROM changes WHERE revision <= ?1"
    " ORDER BY revision DESC LIMIT 1)"
)
LAST_ARCHIVED_TIME: Final = (
    "SELECT coalesce(max(last_time), 0) FROM archived WHERE last_revision <= ?"
)
LAST_ENTRY_TIME: Final = (
    "SELECT time FROM entries WHERE revision <= ? ORDER BY revision DESC LIMIT 1"
)
LAST_REPLACED_TIME: Final = (
    "SELECT time FROM messages WHERE replaced = 1 AND revision <= ? ORDER BY revision DESC LIMIT 1"
)

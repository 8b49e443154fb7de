"""The leaves of messages and sets as logs, files and tables keep them, which may be encrypted.

Whoever has no key cannot make the leaf of an encrypted value. Its owner has made it when it
accepted the value, and the box has it. So logs are applied, and links are checked, without a key;
that a leaf is that of its value is known to whoever decrypts: the leaf is authenticated with it.

Not for what a peer sends: `protocol.chain.hashing` believes nobody. A box without a leaf counts as
the bytes that it is, so the chain differs from that of its owner. Pure.
"""

from __future__ import annotations

from typing import Any

from holdfast.protocol import changes
from holdfast.protocol.chain.hashing import leaf_of, leaf_of_set
from holdfast.protocol.frames import WireChange
from holdfast.shared_fs.store_file.encrypted.encrypted_values import leaf_in_box

_HEADERS_AT = 3


def kept_leaf_of(seq: int, time: int, value: Any, headers: Any, subject: str | None) -> bytes:
    """Return the leaf of a message as it is kept. The arguments are those of `leaf_of`, but
    `headers` may be a box."""
    return leaf_in_box(headers) or leaf_of(seq, time, value, headers, subject)


def kept_leaf_of_set(revision: int, time: int, value: Any, headers: Any, key: str) -> bytes:
    """Return the leaf of a set of a key as it is kept."""
    return leaf_in_box(headers) or leaf_of_set(revision, time, value, headers, key)


def leaf_of_kept(change: WireChange, time: int) -> bytes:
    """Return the leaf of a set of a message at `time`, as logs have it."""
    return _told(change) or changes.leaf(change, time)


def leaf_of_kept_set(change: WireChange, revision: int, time: int) -> bytes:
    """Return the leaf of a set of an entry, as logs have it."""
    return _told(change) or changes.leaf_of_change(change, revision, time)


def _told(change: WireChange) -> bytes | None:
    return leaf_in_box(change[_HEADERS_AT]) if len(change) > _HEADERS_AT else None

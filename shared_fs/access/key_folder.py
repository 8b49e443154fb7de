"""The private keys of a cluster: files of mode 0600 in a folder of mode 0700.

| file | key | who needs it |
|---|---|---|
| `issuer.key` | signs tokens, as the issuer `cluster` | whoever creates tokens |
| `account.nkey` | signs the answers to nats-server | the auth service |
| `callout.xkey` | decrypts what nats-server asks | the auth service |
| `auth.nkey` | logs in to NATS as the auth service | the auth service |
| `servers.nkey` | logs in to NATS as a server | persist servers and the coordinator |
| `system.nkey` | counts and closes connections, in NATS's system account | the auth service |
| `reports.nkey` | tells the coordinator what a part counts | the auth service and gateways |

`issuer.key` is 32 bytes in base64; the others are nkeys (`nkeys_text.py`). No file ends with a line
break, which not every reader of nkeys takes. Nothing here overwrites a key, and no error quotes
one. The cryptography is PyNaCl's.
"""

from __future__ import annotations

import base64
import binascii
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.protocol.access.nkeys_text import (
    KEY_BYTES,
    KeyKind,
    public_text,
    seed,
    seed_text,
)
from holdfast.protocol.errors import InvalidArgumentError, StorageFailedError
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.privacy import open_to_others, private_files

if TYPE_CHECKING:
    from nacl.public import PrivateKey
    from nacl.signing import SigningKey

ISSUER_FILE: Final = "issuer.key"
ACCOUNT_FILE: Final = "account.nkey"
CALLOUT_FILE: Final = "callout.xkey"
AUTH_FILE: Final = "auth.nkey"
SERVERS_FILE: Final = "servers.nkey"
SYSTEM_FILE: Final = "system.nkey"
REPORTS_FILE: Final = "reports.nkey"
_NKEYS: Final = {
    ACCOUNT_FILE: KeyKind.ACCOUNT,
    CALLOUT_FILE: KeyKind.CURVE,
    AUTH_FILE: KeyKind.USER,
    SERVERS_FILE: KeyKind.USER,
    SYSTEM_FILE: KeyKind.USER,
    REPORTS_FILE: KeyKind.USER,
}
#: Folders that an older version made lack them.
_ADDED_LATER: Final = frozenset([SYSTEM_FILE, REPORTS_FILE])


@dataclass(frozen=True, slots=True)
class PublicKeys:
    """What nats-server's configuration needs to know of the keys, as nkeys."""

    account: str
    callout: str
    auth: str
    servers: str
    #: None in a folder that an older version made.
    system: str | None
    reports: str | None = None


class KeyFolder:
    """The key files in `path`. Its methods raise StorageFailedError for a file that cannot be read
    or made, and InvalidArgumentError for one that is no key or that other users can read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._disk = Disk()

    def is_made(self) -> bool:
        """Tell whether the keys exist. Raises InvalidArgumentError if only some of them do."""
        names = [name for name in (ISSUER_FILE, *_NKEYS) if name not in _ADDED_LATER]
        found = [name for name in names if self.has(name)]
        if found and len(found) < len(names):
            missing = ", ".join(name for name in names if name not in found)
            raise InvalidArgumentError(
                argument="keys", reason=f"{self.path} has keys, but lacks {missing}"
            )
        return bool(found)

    def has(self, name: str) -> bool:
        """Tell whether there is a file of this name."""
        return self._disk.exists(self.path / name)

    def make(self) -> None:
        """Make all keys, durably. A file that exists is kept, and a StorageFailedError."""
        contents = {name: seed_text(kind, _new_key()) for name, kind in _NKEYS.items()}
        contents[ISSUER_FILE] = base64.b64encode(_new_key()).decode()
        self._write(contents)

    def add_missing(self) -> bool:
        """Make, durably, the keys that older versions did not know. Return False if none was
        missing."""
        missing = [name for name in sorted(_ADDED_LATER) if not self.has(name)]
        if missing:
            self._write({name: seed_text(_NKEYS[name], _new_key()) for name in missing})
        return bool(missing)

    def issuer_key(self) -> SigningKey:
        """Return the key that signs tokens."""
        from nacl.signing import SigningKey

        try:
            key = base64.b64decode(self._read(ISSUER_FILE), validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if len(key) != KEY_BYTES:
            raise self._wrong(ISSUER_FILE, f"it is not {KEY_BYTES} bytes in base64")
        return SigningKey(key)

    def account_key(self) -> SigningKey:
        """Return the key that signs the answers to nats-server."""
        return self._signing_key(ACCOUNT_FILE)

    def callout_key(self) -> PrivateKey:
        """Return the key that decrypts what nats-server asks."""
        from nacl.public import PrivateKey

        return PrivateKey(self._seed(CALLOUT_FILE))

    def public_keys(self) -> PublicKeys:
        """Return the public keys of all nkeys."""

        def of(name: str) -> str:
            return public_text(_NKEYS[name], bytes(self._signing_key(name).verify_key))

        callout = public_text(KeyKind.CURVE, bytes(self.callout_key().public_key))
        system, reports = (
            of(name) if self.has(name) else None for name in (SYSTEM_FILE, REPORTS_FILE)
        )
        return PublicKeys(
            of(ACCOUNT_FILE), callout, of(AUTH_FILE), of(SERVERS_FILE), system, reports
        )

    def _write(self, contents: Mapping[str, str]) -> None:
        with private_files():
            self._disk.make_directory(self.path)
            self._refuse_if_open(self.path)
            for name, content in contents.items():
                self._disk.write_durably(self.path / name, content.encode(), new=True)

    def _signing_key(self, name: str) -> SigningKey:
        from nacl.signing import SigningKey

        return SigningKey(self._seed(name))

    def _seed(self, name: str) -> bytes:
        try:
            return seed(_NKEYS[name], self._read(name))
        except InvalidArgumentError as error:
            raise self._wrong(name, error.reason) from None

    def _read(self, name: str) -> str:
        path = self.path / name
        try:
            self._check_private(path)
            return self._disk.read(path).decode("ascii", "replace").strip()
        except OSError as error:
            raise StorageFailedError(reason=f"{path}: {error.strerror}") from error

    def _check_private(self, path: Path) -> None:
        """The rule of ssh for private keys: one that others can read counts as known to them.

        It judges files of this user alone. Who mounts secrets for a service, as Kubernetes does,
        owns them, and decides who can get at them.
        """
        if path.stat().st_uid == os.geteuid():
            self._refuse_if_open(path)

    def _refuse_if_open(self, path: Path) -> None:
        mode = open_to_others(path)
        if mode is not None:
            raise InvalidArgumentError(
                argument="keys",
                reason=f"other users may open {path} (mode {mode:04o}). Try: chmod go= {path}",
            )

    def _wrong(self, name: str, reason: str) -> InvalidArgumentError:
        return InvalidArgumentError(argument="keys", reason=f"{self.path / name}: {reason}")


def _new_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)

"""Finding a cluster's registry of tokens, and setting it up once.

With a shared file system the registry is a bucket of its own, in the folder `auth` of `--data`.
With `--disk local` it is in the cluster's bucket, under `auth/`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from holdfast.protocol.access.tokens import EVERY_TENANT
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.shared_fs.access.key_folder import KeyFolder
from holdfast.shared_fs.access.registry import (
    CLUSTER_ISSUER,
    REGISTRY_PREFIX,
    AccessRegistry,
    Issuer,
)
from holdfast.shared_fs.bucket.bucket import open_bucket
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import open_layout

#: The folder of the private keys under `--data`, unless another one is named.
KEYS_FOLDER: Final = "keys"


def registry_folder(data: Path) -> Path:
    """Return the folder of the registry of a cluster on a shared file system."""
    return data / REGISTRY_PREFIX


def registry_on_disk(data: Path, *, make: bool = False) -> AccessRegistry:
    """Return the registry of the cluster whose `--data` this is; close it after use.

    Without `make` nothing is created, and NoBucketError says that there is none. Raises what
    `open_bucket` and `open_layout` raise. Whoever writes does so within `private_files`.
    """
    folder = registry_folder(data.resolve())
    if make:
        # A folder without the mark of a cluster's data, but with a registry, would be refused.
        open_layout(data, Disk())
    return AccessRegistry(open_bucket(folder.as_uri(), make=make))


def registry_in_bucket(url: str, *, make: bool = False) -> AccessRegistry:
    """Return the registry of the cluster without a shared file system whose `--bucket` this is;
    close it after use. Raises as `registry_on_disk` does."""
    return AccessRegistry(open_bucket(url, make=make), REGISTRY_PREFIX)


def set_up(registry: AccessRegistry, keys: KeyFolder) -> bool:
    """Make the keys unless they exist, and register them as those of the issuer `cluster`.

    Keys that an older version did not make are added. Return False if there was nothing to do.
    Raises InvalidArgumentError if the registry knows another key; nothing is overwritten then.
    """
    registered = registry.issuers().get(CLUSTER_ISSUER)
    if registered is None:
        if not keys.is_made():
            keys.make()
        keys.add_missing()
        public_key = bytes(keys.issuer_key().verify_key)
        registry.add_issuer(Issuer(CLUSTER_ISSUER, public_key, (EVERY_TENANT,)))
        return True
    if not keys.is_made():
        reason = f"the cluster has keys already, and {keys.path} does not have them"
        raise InvalidArgumentError(argument="keys", reason=reason)
    if bytes(keys.issuer_key().verify_key) != registered.public_key:
        reason = f"the cluster has other keys than those in {keys.path}"
        raise InvalidArgumentError(argument="keys", reason=reason)
    return keys.add_missing()

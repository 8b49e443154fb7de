"""What the commands around tokens share: where the registry and the keys are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli.deeds import leave_for_audit
from holdfast.protocol.access.audit_event import AuditAction
from holdfast.protocol.distribution import how_to_install
from holdfast.protocol.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.shared_fs.access.key_folder import KeyFolder
    from holdfast.shared_fs.access.registry import AccessRegistry

_Command = TypeVar("_Command", bound=Callable[..., Any])


class MissingAccessPackagesError(HoldfastError):
    """Tokens and keys need packages that the base install leaves out."""

    code = "missing_auth_packages"
    template = f"tokens and keys need {{package}}. Try: {how_to_install('cli,auth')}"


class NoRegistryError(HoldfastError):
    """The cluster has no registry of tokens: it is open."""

    code = "no_registry"
    template = "no tokens are set up in {place}. Try: holdfast auth init"


@contextmanager
def needed_access_packages() -> Iterator[None]:
    """Say what to install if the packages of the extra `auth` cannot be imported."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("holdfast"):
            raise
        raise MissingAccessPackagesError(package=error.name) from error


@dataclass(frozen=True, slots=True)
class AccessPlace:
    """Where a cluster has its registry and its keys, as the options say."""

    data: Path | None
    bucket: str | None
    keys: Path | None

    def __str__(self) -> str:
        return str(self.data) if self.data is not None else str(self.bucket)

    @property
    def arguments(self) -> list[str]:
        """The options that name this place to another command."""
        place = (
            ["--data", str(self.data)] if self.data is not None else ["--bucket", str(self.bucket)]
        )
        return place if self.keys is None else [*place, "--keys", str(self.keys)]

    def check(self) -> None:
        """Raise UsageError unless exactly one of --data and --bucket is given."""
        if (self.data is None) == (self.bucket is None):
            raise click.UsageError("give --data DIR, or --bucket URL of a cluster without it")

    def open_keys(self) -> KeyFolder:
        """Return the folder of the keys. Raises UsageError if no option tells."""
        from holdfast.shared_fs.access.key_folder import KeyFolder
        from holdfast.shared_fs.access.set_up import KEYS_FOLDER

        if self.keys is not None:
            return KeyFolder(self.keys.resolve())
        if self.data is None:
            raise click.UsageError("--bucket needs --keys FOLDER: keys are never in a bucket")
        return KeyFolder(self.data.resolve() / KEYS_FOLDER)

    def tell_audit(self, action: AuditAction, **fields: Any) -> None:
        """Tell the audit log of this cluster what the command did."""
        leave_for_audit(self.data, self.bucket, action, **fields)

    @contextmanager
    def opened_registry(self, *, make: bool = False) -> Iterator[AccessRegistry]:
        """Open the registry around the body. Without `make`, NoRegistryError if it is empty."""
        from holdfast.shared_fs.disk.privacy import private_files

        self.check()
        with private_files():
            registry = self._open_registry(make)
            try:
                if not make and not registry.issuers():
                    raise NoRegistryError(place=str(self))
                yield registry
            finally:
                registry.close()

    def _open_registry(self, make: bool) -> AccessRegistry:
        from holdfast.shared_fs.access.set_up import registry_in_bucket, registry_on_disk
        from holdfast.shared_fs.bucket.bucket_errors import NoBucketError

        try:
            if self.data is not None:
                return registry_on_disk(self.data, make=make)
            return registry_in_bucket(str(self.bucket), make=make)
        except NoBucketError as error:
            raise NoRegistryError(place=str(self)) from error


def registry_options(command: _Command) -> _Command:
    """Give a command the options that say where the registry is."""
    for option in reversed(_REGISTRY):
        command = option(command)
    return command


_REGISTRY = (
    click.option(
        "--data",
        type=click.Path(file_okay=False, path_type=Path),
        help="The --data of the cluster's servers, on the shared file system.",
    ),
    click.option(
        "--bucket",
        metavar="URL",
        help="The --bucket of the cluster's servers, if they run with --disk local.",
    ),
)
KEYS_OPTION = click.option(
    "--keys",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder of the private keys.  [default: keys, in --data]",
)

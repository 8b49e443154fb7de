"""The paths of everything on the shared file system.

    FORMAT                                     the format version of this tree
    CLUSTER                                    the id of the cluster: see `cluster_id.py`
    coordinator/lock, state.db                 of the active coordinator
    coordinator/state.<term>.db                the state, after a takeover past the lock
    coordinator/term, term.<term>              the last term, and who has it: see `term.py`
    coordinator/question, answer               of standbys, and to them: see `questions.py`
    coordinator.progress                       how far state.db has come: outside, see `progress.py`
    servers/<server>/lock                      held by the running incarnation of <server>
    servers/<server>/<incarnation>/fence       may this incarnation still acknowledge?
    servers/<server>/<incarnation>/proof       does its server read fresh? See `proof.py`
    servers/<server>/<incarnation>/log/<segment>.log
    servers/<server>/<incarnation>/log/sealed    the listing is from after the fence: see `seal.py`
    servers/<server>/<incarnation>/letting-go, loss-accepted      see `dead_incarnation.py`
    stores/<tenant>/<aaa>/<name>.<stream|kv>.<generation>.db
    stores/<tenant>/<aaa>/<name>.<stream|kv>.deleted      see `tombstone.py`
    stores/<tenant>/<aaa>/<name>.<stream|kv>.older-accepted   an operator put an older file there
    quotas/                                    what tenants may use: see `access/quotas.py`
    encryption/                                wrapped data keys of tenants whose values are
                                               encrypted: see `encryption/registry.py`
    audit/                                     on the way to the audit log: `audit_outbox.py`
    quarantine/<tenant>/<file>.<time>/         damaged files, each with a report and with the
                                               changes that may be in no file: see `quarantine.py`
    auth/                                      the registry of tokens: see `shared_fs/access/`
    keys/                                      private keys: see `shared_fs/access/key_folder.py`

A file's generation is the epoch of the owner that made it, or less. A generation ends when its file
is still locked by an owner that is fenced but still running: the next owner continues with a copy
(`persist/shared_disk/opening.py`). `generations.py` decides which of several files counts.

Stores are spread by hash over 4,096 folders. A million stores are about 250 per folder, which is
cheap to list, and few stores are the first in their folder (making a folder and its name durable
costs as much as making the file).
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.protocol.errors import NewerFormatError, StorageError, StoreDamagedError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.tombstone import read_tombstone

FORMAT_VERSION: Final = 1
#: The name of a folder among which the stores of a tenant are spread.
HASH_FOLDER: Final = re.compile("[0-9a-f]{3}")
#: The suffix of the file with which an operator accepts an older store file.
OLDER_ACCEPTED: Final = ".older-accepted"
_FORMAT_TEXT: Final = "holdfast shared file system, format "


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths under one root."""

    root: Path

    @property
    def format_file(self) -> Path:
        return self.root / "FORMAT"

    @property
    def cluster_file(self) -> Path:
        return self.root / "CLUSTER"

    @property
    def coordinator(self) -> Path:
        return self.root / "coordinator"

    @property
    def coordinator_progress(self) -> Path:
        """Outside the coordinator's folder, which a backup may restore as a whole."""
        return self.root / "coordinator.progress"

    @property
    def servers(self) -> Path:
        return self.root / "servers"

    @property
    def quarantine(self) -> Path:
        return self.root / "quarantine"

    @property
    def quotas(self) -> Path:
        return self.root / "quotas"

    @property
    def encryption(self) -> Path:
        return self.root / "encryption"

    @property
    def audit(self) -> Path:
        return self.root / "audit"

    def server(self, server: str) -> Path:
        return self.servers / server

    def incarnation(self, server: str, incarnation: str) -> Path:
        return self.servers / server / incarnation

    def fence(self, server: str, incarnation: str) -> Path:
        return self.incarnation(server, incarnation) / "fence"

    def proof(self, server: str, incarnation: str) -> Path:
        return self.incarnation(server, incarnation) / "proof"

    def log(self, server: str, incarnation: str) -> Path:
        return self.incarnation(server, incarnation) / "log"

    def letting_go(self, server: str, incarnation: str) -> Path:
        return self.incarnation(server, incarnation) / "letting-go"

    def loss_accepted(self, server: str, incarnation: str) -> Path:
        return self.incarnation(server, incarnation) / "loss-accepted"

    def store(self, store: StoreId, generation: int = 1) -> Path:
        return Path(f"{self._of_store(store)}.{generation}.db")

    def tombstone(self, store: StoreId) -> Path:
        return Path(f"{self._of_store(store)}.deleted")

    def older_accepted(self, store: StoreId) -> Path:
        return Path(f"{self._of_store(store)}{OLDER_ACCEPTED}")

    def _of_store(self, store: StoreId) -> str:
        """Return the start of the paths of all files of a store.

        It is text, because each part that is added to a Path takes 3 µs, and
        opening a store uses ten paths.
        """
        digest = hashlib.blake2b(
            f"{store.tenant}/{store.kind}/{store.name}".encode(), digest_size=2
        ).hexdigest()
        word = StoreKind(store.kind).word
        return f"{self.root}/stores/{store.tenant}/{digest[:3]}/{store.name}.{word}"

    def generations(self, disk: Disk, store: StoreId, *, with_deleted: bool = False) -> list[int]:
        """Return the generations of a store's file that exist, lowest first.

        Generations that were deleted, and only have to be removed, are included on request.
        """
        start = f"{store.name}.{StoreKind(store.kind).word}."
        found = []
        deleted = 0
        for name in disk.names(self.store(store).parent):
            number = name.removeprefix(start).removesuffix(".db")
            if name == f"{start}{number}.db" and number.isdigit():
                found.append(int(number))
            elif name == f"{start}deleted" and not with_deleted:
                grave = read_tombstone(disk, self.tombstone(store))
                deleted = grave.epoch if grave is not None else 0
        return sorted(generation for generation in found if generation > deleted)


class NoDataError(StorageError):
    """Raised by commands that only read an existing tree, instead of creating one."""

    code = "no_data"
    template = "no holdfast data here: {path} has no FORMAT file"


def existing_layout(root: Path, disk: Disk) -> Layout:
    """Return the layout under `root`; writes nothing. Raises NoDataError, and as `open_layout`."""
    if not disk.exists(Layout(root).format_file):
        raise NoDataError(path=str(root))
    return open_layout(root, disk)


def _format_text(layout: Layout, disk: Disk) -> str | None:
    """Return the content of FORMAT, or None if there is none."""
    try:
        return disk.read(layout.format_file).decode(errors="replace").strip()
    except FileNotFoundError:
        return None


def open_layout(root: Path, disk: Disk) -> Layout:
    """Return the layout under `root`; create it if `root` is missing or empty.

    Raises NewerFormatError for a tree of a later holdfast, StoreDamagedError for a folder with
    other content (it is left alone), StorageFailedError.
    """
    layout = Layout(root)
    text = _format_text(layout, disk)
    if text is None:
        strangers = [
            name
            for name in disk.names(root)
            if name != "lost+found" and not name.startswith(layout.format_file.name)
        ]
        if strangers:
            # Another process may have created the tree meanwhile: FORMAT first, then the rest.
            text = _format_text(layout, disk)
        if strangers and text is None:
            raise StoreDamagedError(
                store=str(root),
                reason=f"it has no FORMAT file but contains {', '.join(strangers[:3])}; "
                "name a new or empty folder",
            )
    if text is None:
        disk.make_directory(root)
        disk.write_durably(layout.format_file, f"{_FORMAT_TEXT}{FORMAT_VERSION}\n".encode())
        return layout
    version = text.removeprefix(_FORMAT_TEXT)
    if version == text or not (version.isascii() and version.isdigit()):
        raise StoreDamagedError(store=str(layout.format_file), reason="not holdfast's FORMAT file")
    if int(version) > FORMAT_VERSION:
        raise NewerFormatError(what=str(root), found=int(version), known=FORMAT_VERSION)
    return layout

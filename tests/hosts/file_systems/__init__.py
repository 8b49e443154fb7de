"""The file systems that hosts may share, by name."""

from __future__ import annotations

from typing import Final

from tests.hosts.file_systems.cephfs import CephFS
from tests.hosts.file_systems.file_system import LocalFileSystem
from tests.hosts.file_systems.glusterfs import GlusterFS
from tests.hosts.file_systems.moosefs import MooseFS

FILE_SYSTEMS: Final[dict[str, type[LocalFileSystem]]] = {
    each.name: each for each in (LocalFileSystem, GlusterFS, MooseFS, CephFS)
}

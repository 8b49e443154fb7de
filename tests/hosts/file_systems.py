"""The file systems that hosts may share, by name."""

from __future__ import annotations

from typing import Final

from tests.hosts.cephfs import CephFS
from tests.hosts.file_system import LocalFileSystem
from tests.hosts.glusterfs import GlusterFS
from tests.hosts.moosefs import MooseFS

FILE_SYSTEMS: Final[dict[str, type[LocalFileSystem]]] = {
    each.name: each for each in (LocalFileSystem, GlusterFS, MooseFS, CephFS)
}

"""The witnesses of a run: one on each host with a mount, and what they have to say at the end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from holdfast.cli.cluster.die_with_parent import tethered
from tests.hosts.file_systems.file_system import LocalFileSystem
from tests.hosts.file_systems.witness import Note, Testimony, hear, read_notes
from tests.hosts.network import Host

_MODULE: Final = "tests.hosts.file_systems.witness"
_ROOT: Final = Path(__file__).resolve().parents[3]
#: A record that has not been synced by then never will be.
_END_SECONDS: Final = 60.0
_READ_SECONDS: Final = 60.0


class Witnesses:
    """The witnesses; `testimonies` is filled when they have ended."""

    def __init__(self, data: Path, file_system: LocalFileSystem, hosts: Sequence[Host]) -> None:
        self.testimonies: list[Testimony] = []
        self._hosts = hosts
        self._notes = data / "witnesses"
        self._file_system = file_system

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Have them write around the body. Afterwards, read what they wrote."""
        self._notes.mkdir()
        processes = []
        try:
            for host in self._hosts:
                folder = self._folder(host, host)
                folder.mkdir(parents=True)
                task = (str(folder), str(self._notes_of(host)))
                command = host.command(
                    sys.executable, "-m", "tests.hosts.file_systems.witness", *task
                )
                processes.append(
                    await asyncio.create_subprocess_exec(*tethered(command), cwd=_ROOT)
                )
            yield
            for process in processes:
                if process.returncode is not None:
                    raise RuntimeError(f"a witness ended with exit code {process.returncode}")
                process.terminate()
            async with asyncio.timeout(_END_SECONDS):
                for process in processes:
                    await process.wait()
        finally:
            # One that hangs in a file system ends with the namespaces.
            for process in processes:
                if process.returncode is None:
                    process.kill()
        for number, host in enumerate(self._hosts):
            reader = self._hosts[(number + 1) % len(self._hosts)]
            notes = read_notes(self._notes_of(host))
            contents = await self._read(host, reader, notes)
            self.testimonies.append(hear(host.name, notes, contents))

    async def _read(self, host: Host, reader: Host, notes: list[Note]) -> dict[str, bytes]:
        """Return what the files of a host have, read on another one; without those that cannot be
        read."""
        contents = {}
        for name in {note.file for note in notes if not note.error}:
            command = reader.command("cat", str(self._folder(host, reader) / name))
            process = await asyncio.create_subprocess_exec(
                *tethered(command), stdout=asyncio.subprocess.PIPE
            )
            try:
                async with asyncio.timeout(_READ_SECONDS):
                    content, _ = await process.communicate()
            except TimeoutError:
                process.kill()
            else:
                if process.returncode == 0:
                    contents[name] = content
        return contents

    def _folder(self, host: Host, seen_from: Host) -> Path:
        """Return where the files of a host are, as another one sees them."""
        return self._file_system.folder(seen_from).with_name(f"witness-{host.name}")

    def _notes_of(self, host: Host) -> Path:
        return self._notes / f"{host.name}.jsonl"

"""What holdfast is installed as: the distribution's name, its version, and how to get more of it.

The packages are imported as `holdfast.*` and the command is `holdfast`, but the name `holdfast` on
the Python package index belongs to an unrelated project: nothing here may ever name it as something
to install, or take its version for ours.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

DISTRIBUTION: Final = "holdfast-nats"


def version() -> str:
    """Return the version that is installed; of a source tree that is not, the one that it says."""
    # Here, since no client that does not ask shall import it.
    from importlib import metadata

    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return _version_of_tree(Path(__file__).parents[1])


def how_to_install(extras: str) -> str:
    """Return what to type to get the packages of these extras (joined by commas)."""
    return f"pip install '.[{extras}]' in a clone of holdfast, or 'WHEEL[{extras}]' with its wheel"


def _version_of_tree(root: Path) -> str:
    import tomllib

    try:
        project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        return "unknown"
    return str(project["version"]) if project.get("name") == DISTRIBUTION else "unknown"

"""The distribution: its name, its version, and how to install more of it.

The packages are imported as `holdfast.*` and the command is `holdfast`, but the name `holdfast` on
the Python package index belongs to an unrelated project. Never name it as something to install, and
never take its version for ours.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

DISTRIBUTION: Final = "holdfast-nats"


def version() -> str:
    """Return the installed version, or that of the source tree if it is not installed."""
    # Imported here, so that only clients that ask for the version pay for it.
    from importlib import metadata

    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return _version_of_tree(Path(__file__).parents[1])


def how_to_install(extras: str) -> str:
    """Return the command that installs the packages of these extras (joined by commas)."""
    return f"pip install '.[{extras}]' in a clone of holdfast, or 'WHEEL[{extras}]' with its wheel"


def _version_of_tree(root: Path) -> str:
    import tomllib

    try:
        project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        return "unknown"
    return str(project["version"]) if project.get("name") == DISTRIBUTION else "unknown"

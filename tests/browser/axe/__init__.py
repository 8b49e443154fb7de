"""What axe-core, an accessibility checker that others wrote, finds on a page.

It knows the rules of WCAG 2.2 as a checker of a page's tree and colours can judge them. It is taken
from npm at its locked version.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.browser.browser import Page

_FOLDER: Final = Path(__file__).parent
_SCRIPT: Final = _FOLDER / "node_modules" / "axe-core" / "axe.min.js"
_INSTALL_SECONDS: Final = 120
_TAGS: Final = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")


def script() -> str:
    """Return axe-core's source; skip the test where npm cannot be found or has no packages."""
    if not _SCRIPT.is_file():
        if shutil.which("npm") is None:
            pytest.skip("needs npm, for axe-core")
        install = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
        try:
            subprocess.run(
                install, cwd=_FOLDER, check=True, timeout=_INSTALL_SECONDS, capture_output=True
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"npm cannot install axe-core: {error}")
    return _SCRIPT.read_text()


def violations(page: Page, source: str) -> list[str]:
    """Return a line for each element that breaks a rule: the rule, the element, what is wrong."""
    page.evaluate(f"window.axe ? 0 : (() => {{ {source}; return 0; }})()")
    options = json.dumps({"runOnly": list(_TAGS), "resultTypes": ["violations"]})
    found = page.evaluate(
        f"axe.run(document, {options}).then((all) => JSON.stringify(all.violations))"
    )
    return [
        f"{rule['id']}: {' '.join(map(str, node['target']))}: {node['failureSummary']}"
        for rule in json.loads(found)
        for node in rule["nodes"]
    ]

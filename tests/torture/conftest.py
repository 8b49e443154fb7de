"""Lets the tests import the package `torture` by its name, as its processes do."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

"""Lets the tests import the package `simulation` by its name, as the processes of a run do."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

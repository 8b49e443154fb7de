"""Lets the tests import the packages `hostile` and `torture` by their names, as their processes do."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

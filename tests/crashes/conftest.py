"""Lets the tests import the packages `crashes`, `power` and `simulation` by their names."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

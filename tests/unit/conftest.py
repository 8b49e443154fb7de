"""Lets the unit tests import what they share, such as `small_store_files`, by its plain name."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

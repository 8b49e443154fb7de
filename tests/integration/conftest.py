"""Lets the integration tests import what they share, such as `nats_server`, by its plain name, and
the package `torture`, for its editing traces."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1]))

"""Lets the integration tests import what they share, such as `nats_server`, by its plain name."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

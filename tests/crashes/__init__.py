"""Crashes at every step of what the tiers do: see `run.py`."""

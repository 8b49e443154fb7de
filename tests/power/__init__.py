"""Power cuts at every point at which a file changes: see `run.py`."""

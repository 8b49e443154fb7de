"""What one open store accepts: the running tick, and each kind of change. See `accepted.py`."""

"""Torture with real processes: `make torture MINUTES=n`.

Clients write, delete, read and follow while the parts of a cluster are killed, stopped and
restarted at random. Everything the clients did and heard is recorded (`history.py`) and judged
(`checker.py`).
"""

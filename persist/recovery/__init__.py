"""Takeover, point-in-time restore and rebuilding: replay of logs."""

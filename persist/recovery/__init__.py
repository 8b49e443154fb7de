"""Takeover and point-in-time restore: pure replay of logs."""

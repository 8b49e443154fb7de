"""Rows of snapshots and logs."""

"""Rows of snapshots and logs for the table of changes."""

"""Archived messages as a table."""

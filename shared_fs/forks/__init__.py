"""Stores that share a snapshot of another store: what is recorded of that, and what they become."""

"""Durability `stored`: the log in the bucket, slot by slot."""

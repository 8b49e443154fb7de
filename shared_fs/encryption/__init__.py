"""Encryption at rest: keys, where they are kept, and how values are encrypted with them."""

"""Ephemeral stores: what of them is durable, and the memory that they take."""

"""A server's life: it opens stores, beats, drains, leaves."""

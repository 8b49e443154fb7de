"""The configuration of a store: what it may become."""

"""Mirrors and sourced streams: what is copied from which stream, how far, and by whom."""

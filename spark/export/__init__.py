"""Exporting a bucket into compacted tables."""

"""Readers of large files that are behind: what they read next comes into memory before they ask."""

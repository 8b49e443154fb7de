"""Reads that would wait for the disk, and reading ahead."""

"""Readers that are behind, in large files or in the archive: what comes next is in memory then."""

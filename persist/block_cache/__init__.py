"""Blocks of snapshots in the memory of servers with the role `cache`, for all servers of a zone."""

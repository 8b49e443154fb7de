"""The demo: a git history through a cluster whose servers are killed."""

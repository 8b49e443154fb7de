"""Reads of archived messages: by servers with the role `archive`, for the owners of their zone."""

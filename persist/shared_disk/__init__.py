"""How stores open, logs are reaped and fences watched on a shared file system."""

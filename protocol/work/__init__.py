"""What servers are there for: their roles, and the cold work that they share out. Pure."""

"""Other protocols in front of the cluster. Each is a client of it, and needs no server's module."""

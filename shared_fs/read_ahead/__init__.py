"""Where in a store's file its next messages are, and whether this host has that in memory."""

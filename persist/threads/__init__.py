"""The threads of a server: those that sync, those of the tiers, and the watch over the loop."""

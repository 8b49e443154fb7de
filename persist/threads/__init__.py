"""The threads and tasks of a server: syncs, tiers, what nobody awaits, the watch over the loop."""

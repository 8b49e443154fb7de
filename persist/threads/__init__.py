"""Work beside the loop: syncs, tiers, tasks that nobody awaits, and the watch over
the loop itself."""

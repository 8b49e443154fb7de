"""Many users, each with a store."""

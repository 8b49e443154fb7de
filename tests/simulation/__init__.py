"""The deterministic simulation: a whole cluster in one event loop, under faults, from a seed."""

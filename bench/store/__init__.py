"""Benchmarks of the store layer: the engine alone, idle stores, large values, fairness, threads."""

"""Benchmarks of exports with Spark."""

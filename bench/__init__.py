"""Benchmarks: holdfast compared with its alternatives, and measured alone."""

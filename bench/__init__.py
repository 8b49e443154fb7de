"""Benchmarks: holdfast measured beside what users would pick instead, and by itself."""

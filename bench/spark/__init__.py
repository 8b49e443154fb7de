"""Exports by Spark."""

"""Spark imports every top-level module named `pyspark_*` and registers its `DefaultSource`."""

from holdfast.spark.source.source import HoldfastSource as DefaultSource

__all__ = ["DefaultSource"]

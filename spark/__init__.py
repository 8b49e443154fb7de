"""Spark: the bucket exported to tables, compacted, read and written as a data source."""

"""The Spark data source: batch and streaming reads."""

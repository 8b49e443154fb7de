"""The exported Delta tables and their watermarks."""

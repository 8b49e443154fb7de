"""Streams and kvs of holdfast as plain HTTP."""

"""Codecs and compression: an application's values, and the bytes on the wire."""

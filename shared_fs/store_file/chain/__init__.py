"""The chain of hashes of a stream, in its file."""

"""The chain of hashes of a stream: what is hashed, and how kept values are checked."""

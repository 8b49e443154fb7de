"""The chain of hashes of a stream, computed anew from what its owner tells."""

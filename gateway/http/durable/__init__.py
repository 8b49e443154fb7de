"""The Durable Streams Protocol over streams of holdfast."""

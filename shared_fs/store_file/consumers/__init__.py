"""The consumers and cursors of a stream as rows of its file."""

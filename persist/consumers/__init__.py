"""The consumers and cursors of an open stream, in memory."""

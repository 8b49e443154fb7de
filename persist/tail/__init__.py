"""The end of a stream in memory: messages that its file lacks yet, and reads of them."""

"""The coordinator's messages to servers and to other coordinators, and theirs to it."""

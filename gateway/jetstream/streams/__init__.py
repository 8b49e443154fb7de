"""A stream as JetStream has it: its entry in the catalogue, publishing to it, reading from it."""

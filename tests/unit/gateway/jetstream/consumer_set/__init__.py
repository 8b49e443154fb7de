"""The consumers of one served stream at work."""

"""Encrypted values in a store file: that there are some, and how readers decrypt them."""

"""The size of the pages of a store file: which one it gets, and making it anew with another."""

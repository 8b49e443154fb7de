"""The pages of a store file: their size, making it anew with another, and when they are written."""

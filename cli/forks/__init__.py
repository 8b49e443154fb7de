"""New stores that begin as others are."""

"""The storage mode of a server whose bucket is all there is: the same parts, elsewhere."""

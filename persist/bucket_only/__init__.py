"""The storage mode of a bucket-only cluster: the same parts as on a shared disk, in the bucket."""

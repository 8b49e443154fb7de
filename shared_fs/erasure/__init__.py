"""What an erasure looks for in the bucket, and how it leaves at once."""

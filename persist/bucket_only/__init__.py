"""The same where the bucket is all there is."""

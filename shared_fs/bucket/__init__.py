"""The bucket: one interface over a directory, S3 and memory; retries and usage."""

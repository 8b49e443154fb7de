"""The commit log in the bucket: its objects and their fences."""

"""The console: one page that shows a cluster, and the JSON below `/api/v1` that it reads."""

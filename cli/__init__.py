"""The `holdfast` command: run servers, clusters and a demo, and look at what is stored."""

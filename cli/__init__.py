"""The `holdfast` command: runs the servers, an embedded cluster, a demo, and shows what is stored."""

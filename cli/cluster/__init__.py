"""A whole cluster on this machine, as `holdfast up` runs it."""

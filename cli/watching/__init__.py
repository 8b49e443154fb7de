"""Looking at a running cluster: `servers`, `report`, `top` and `cost`."""

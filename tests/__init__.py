"""The tests. From the root of the repository: `pytest`, and `python -m tests.simulation`."""

"""See the package that is tested."""

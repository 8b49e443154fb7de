"""The checks of `holdfast doctor`, and the examination that makes them."""

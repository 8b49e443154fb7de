"""The catalogue of a tenant's streams: a mirror of it, and how it is changed."""

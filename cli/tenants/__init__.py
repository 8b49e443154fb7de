"""The commands that concern tenants: what there are, how much they may use, and their end."""

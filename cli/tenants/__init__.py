"""The commands that concern tenants: who may do what, how much, and their end."""

"""What tenants may use of this server: rates and bytes, checked before a group is executed."""

"""Who may do what on this server: frames wait for their grants, groups are checked against them."""

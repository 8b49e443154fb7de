"""What a server says to the coordinator and to the other owners."""

"""What the coordinator says to servers and to other coordinators, and hears of them."""

"""Talking to the coordinator and to the other owners."""

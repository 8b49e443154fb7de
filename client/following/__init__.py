"""Follows the changes of stores: listens, merges, asks for what was missed."""

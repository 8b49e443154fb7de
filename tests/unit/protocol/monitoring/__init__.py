"""Tests of what is counted."""

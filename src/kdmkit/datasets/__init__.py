"""Data sets as arrays."""

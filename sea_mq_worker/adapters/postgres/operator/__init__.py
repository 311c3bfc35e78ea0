"""Operators' queries and changes."""

"""Lookups and changes by operators."""

"""Queries and changes that operators ask for."""

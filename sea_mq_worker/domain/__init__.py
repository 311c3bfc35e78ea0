"""Decisions as frozen data and pure functions, without IO and drivers."""

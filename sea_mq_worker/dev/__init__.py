"""Embedded servers and the demonstration of ``dev``."""

"""Writes the pages, or parts of pages, that follow from the code."""

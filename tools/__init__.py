"""Tools for those who change the project; no part of what is installed."""

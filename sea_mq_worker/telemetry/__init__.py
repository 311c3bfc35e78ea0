"""Logs, metrics and traces of the facts that the worker reports."""

"""Logs, metrics and traces of the events that the worker emits."""

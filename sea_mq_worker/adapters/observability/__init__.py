"""Listeners of the worker's facts (logs, metrics) and decorators that trace."""

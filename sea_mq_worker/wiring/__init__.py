"""Builds the worker from its settings."""

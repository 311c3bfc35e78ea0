"""Reconcile: what became of every event."""

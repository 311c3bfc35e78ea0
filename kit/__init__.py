"""Tells which guarantees a relay, or a deployment of this worker, keeps while everything around it fails."""

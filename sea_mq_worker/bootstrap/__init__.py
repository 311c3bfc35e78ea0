"""The composition root: wires the worker's process."""

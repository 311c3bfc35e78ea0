"""What the worker can tell, by name: docs/reference/telemetry.md is made of these tables."""

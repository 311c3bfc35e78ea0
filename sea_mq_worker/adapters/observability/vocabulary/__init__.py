"""What the worker can tell, by name: docs/telemetry.md is made of these tables."""

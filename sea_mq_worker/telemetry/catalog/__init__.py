"""Every log event, metric and span by name; docs/reference/telemetry.md is made of these tables."""

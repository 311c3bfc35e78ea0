"""Catalog of log events, metrics and spans; docs/reference/telemetry.md is generated from it."""

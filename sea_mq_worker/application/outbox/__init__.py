"""Outbound: events from the outbox to the stream."""

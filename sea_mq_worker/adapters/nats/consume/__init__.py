"""Consuming from one durable consumer."""

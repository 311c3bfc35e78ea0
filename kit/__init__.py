"""Tells which guarantees a relay from PostgreSQL to NATS JetStream keeps while everything around it fails."""

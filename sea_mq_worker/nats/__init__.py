"""The connection to NATS, and the form of messages there."""

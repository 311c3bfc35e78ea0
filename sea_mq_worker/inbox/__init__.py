"""Inbound: from a message in JetStream through the service's handler to its outcome in ``inbox_messages``."""

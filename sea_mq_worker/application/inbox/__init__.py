"""Inbound: messages from a durable consumer through the inbox to the handler."""

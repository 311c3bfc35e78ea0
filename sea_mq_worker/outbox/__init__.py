"""Outbound: from a row of ``outbox_events`` to a message in JetStream."""

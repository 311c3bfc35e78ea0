"""Replay: events of the table and of the archive, published again."""

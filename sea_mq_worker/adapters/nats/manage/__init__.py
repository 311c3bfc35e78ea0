"""Streams, consumers and dead letters as operators see them."""

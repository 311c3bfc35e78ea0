"""Typed tables: the payloads of silver as columns, by JSON Schemas of the events."""

"""Land: streams into the lake."""

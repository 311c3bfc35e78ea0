"""The data source ``jetstream``: a stream's messages, in ranges of sequences read side by side."""

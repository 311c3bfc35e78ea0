"""The job ``erase``: delete chosen events everywhere, for good."""

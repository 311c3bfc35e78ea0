"""Use cases of operators: find, replay, redrive, purge and prune."""

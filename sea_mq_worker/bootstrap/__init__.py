"""The composition root: the only place that constructs adapters."""

"""Report: one page of plots."""

"""Query the lake with Polars: ``python with_polars.py LAKE``; needs ``polars`` and ``deltalake``."""

import sys
from datetime import UTC, datetime, timedelta

import polars as pl

if __name__ == "__main__":
    silver = pl.scan_delta(f"{sys.argv[1]}/silver")
    recent = silver.filter(pl.col("date") >= (datetime.now(UTC) - timedelta(days=7)).date())
    total = pl.col("payload").str.json_path_match("$.total").cast(pl.Float64)
    figures = recent.group_by("event_type").agg(pl.len().alias("events"), total.sum().alias("total"))
    print(figures.sort("event_type").collect())

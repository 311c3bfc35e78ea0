"""Query the lake with DuckDB: ``python with_duckdb.py LAKE``; needs ``duckdb`` and ``deltalake``."""

import sys

import duckdb
from deltalake import DeltaTable

TABLES = ("silver", "gold")
TYPES = (
    "SELECT event_type, sum(events) AS events, max(p99_seconds) AS p99 FROM gold GROUP BY ALL ORDER BY ALL"
)
VALUES = """
SELECT payload->>'$.total' AS total, occurred_at
FROM silver
WHERE event_type = 'order.created' AND date >= current_date - 7
ORDER BY occurred_at DESC, seq DESC LIMIT 3
"""

if __name__ == "__main__":
    with duckdb.connect() as connection:
        for table in TABLES:
            # A filter on a partition column or a range column skips files.
            connection.register(table, DeltaTable(f"{sys.argv[1]}/{table}").to_pyarrow_dataset())
        for query in (TYPES, VALUES):
            connection.sql(query).show()

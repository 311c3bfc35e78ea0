-- The migrations that a schema has.

CREATE TABLE IF NOT EXISTS sea_mq_migrations (
    version INT PRIMARY KEY,
    name TEXT NOT NULL,
    applied_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);

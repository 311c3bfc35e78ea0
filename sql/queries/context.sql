-- The context that owns the tables.

-- name: owner
-- The owner; no row before the first worker.
SELECT context, current_schema() AS schema FROM sea_mq_context;

-- name: hidden
-- Tables in which row security hides rows from this role.
SELECT t.name
  FROM pg_catalog.unnest(ARRAY['outbox_events', 'inbox_messages']) AS t (name)
 WHERE row_security_active(t.name);

-- name: take
-- Records the owner, unless there is one. $1 context.
INSERT INTO sea_mq_context (context) VALUES ($1) ON CONFLICT DO NOTHING;

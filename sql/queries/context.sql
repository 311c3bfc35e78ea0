-- Whose tables these are.

-- name: owner
-- The context that they belong to; no row before a worker ran.
SELECT context FROM sea_mq_context;

-- name: hidden
-- Tables of which row security hides rows from this role.
SELECT t.name
  FROM unnest(ARRAY['outbox_events', 'inbox_messages']) AS t (name)
 WHERE row_security_active(t.name);

-- name: take
-- Makes them the context's, unless they are somebody's already. $1 context.
INSERT INTO sea_mq_context (context) VALUES ($1) ON CONFLICT DO NOTHING;

-- Whose tables these are.

-- name: owner
-- The context that they belong to; no row before a worker ran.
SELECT context FROM sea_mq_context;

-- name: take
-- Makes them the context's, unless they are somebody's already. $1 context.
INSERT INTO sea_mq_context (context) VALUES ($1) ON CONFLICT DO NOTHING;

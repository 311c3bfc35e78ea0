-- Statements of the pytest fixtures.

-- name: written
-- All events in the order of their insertion, each as a JSON object of its columns.
SELECT to_jsonb(o)::text AS event FROM outbox_events o ORDER BY o.seq;

-- The statement of a producer, inside its own transaction. It needs only the privilege INSERT.

-- name: enqueue
-- Inserts events in the given order; an absent value takes the column's default.
-- Keys are cast to text, so that no foreign operator in the service's search path matches better.
-- $1 the events, as a JSON array of objects.
INSERT INTO outbox_events (
    id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at, correlation_id, causation_id,
    partition_key, ordering_key, headers, metadata, available_at)
SELECT (e->>'id'::text)::uuid, e->>'aggregate_type'::text, e->>'aggregate_id'::text, e->>'event_type'::text,
       (e->>'event_version'::text)::int, e->'payload'::text,
       coalesce((e->>'occurred_at'::text)::timestamptz, now()),
       (e->>'correlation_id'::text)::uuid, (e->>'causation_id'::text)::uuid, e->>'partition_key'::text,
       e->>'ordering_key'::text, e->'headers'::text, e->'metadata'::text,
       coalesce((e->>'available_at'::text)::timestamptz, now())
  FROM jsonb_array_elements(CAST(CAST($1 AS text) AS jsonb)) WITH ORDINALITY AS given (e, nth)
 ORDER BY nth;

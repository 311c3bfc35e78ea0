-- What a producer runs, inside its own transaction. It needs no privilege but INSERT.

-- name: enqueue
-- Inserts events in the order in which they are given; what is absent takes the column's default.
-- $1 the events, as a JSON array of objects.
INSERT INTO outbox_events (
    id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at, correlation_id, causation_id,
    partition_key, ordering_key, headers, metadata, available_at)
SELECT (e->>'id')::uuid, e->>'aggregate_type', e->>'aggregate_id', e->>'event_type', (e->>'event_version')::int,
       e->'payload', coalesce((e->>'occurred_at')::timestamptz, now()), (e->>'correlation_id')::uuid,
       (e->>'causation_id')::uuid, e->>'partition_key', e->>'ordering_key', e->'headers', e->'metadata',
       coalesce((e->>'available_at')::timestamptz, now())
  FROM jsonb_array_elements(CAST(CAST($1 AS text) AS jsonb)) WITH ORDINALITY AS given (e, nth)
 ORDER BY nth;

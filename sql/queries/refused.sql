-- Finds the event for which a claim failed: a trigger or constraint of the application refuses its claim.

-- name: due
-- Events that a claim without an ordering key may have met.
-- Indexes: idx_outbox_due, idx_outbox_retry.
-- $1 $2 cursor (available_at, seq) of first tries, $3 $4 of retries, $5 limit of each, $6 ids to skip.
(SELECT o.id::text AS id
   FROM outbox_events o
  WHERE o.is_open AND o.ordering_key IS NULL AND o.publish_error IS NULL
    AND o.state = 'PENDING' AND o.available_at <= now()
    AND (o.available_at, o.seq) > ($1::timestamptz, $2::bigint) AND o.id <> ALL ($6::uuid[])
  ORDER BY o.available_at, o.seq
  LIMIT $5::int)
UNION ALL
(SELECT o.id::text
   FROM outbox_events o
  WHERE o.is_open AND o.ordering_key IS NULL AND o.publish_error IS NOT NULL
    AND o.state = 'PENDING' AND o.available_at <= now()
    AND (o.available_at, o.seq) > ($3::timestamptz, $4::bigint) AND o.id <> ALL ($6::uuid[])
  ORDER BY o.available_at, o.seq
  LIMIT $5::int);

-- name: due_ordered
-- The same for events that have one, by their keys.
-- Indexes: idx_outbox_due_ordered, idx_outbox_retry_ordered, idx_outbox_ordering.
-- $1 .. $6 as in due, $7 further keys, $8 longest run of a key.
WITH fresh AS MATERIALIZED (
    SELECT o.ordering_key AS key
      FROM outbox_events o
     WHERE o.is_open AND o.ordering_key IS NOT NULL AND o.publish_error IS NULL
       AND o.state = 'PENDING' AND o.available_at <= now()
       AND (o.available_at, o.seq) > ($1::timestamptz, $2::bigint)
     ORDER BY o.available_at, o.seq
     LIMIT $5::int
), retried AS MATERIALIZED (
    SELECT o.ordering_key AS key
      FROM outbox_events o
     WHERE o.is_open AND o.ordering_key IS NOT NULL AND o.publish_error IS NOT NULL
       AND o.state = 'PENDING' AND o.available_at <= now()
       AND (o.available_at, o.seq) > ($3::timestamptz, $4::bigint)
     ORDER BY o.available_at, o.seq
     LIMIT $5::int
), keys AS MATERIALIZED (
    SELECT key FROM fresh UNION SELECT key FROM retried UNION SELECT pg_catalog.unnest($7::text[])
)
SELECT run.id::text AS id
  FROM keys CROSS JOIN LATERAL (
    SELECT o.id, o.state, o.available_at
      FROM outbox_events o
     WHERE o.is_open AND o.ordering_key IS NOT NULL AND o.ordering_key = keys.key
     ORDER BY o.seq
     LIMIT $8::int
  ) run
 WHERE run.state = 'PENDING' AND run.available_at <= now() AND run.id <> ALL ($6::uuid[]);

-- name: try_claim
-- Claims events as a claim does, to be rolled back: only whether PostgreSQL accepts it matters.
-- Index: the primary key.
-- $1 ids, $2 claimed_by.
UPDATE outbox_events o
   SET state = 'CLAIMED', claimed_at = statement_timestamp(), claimed_by = $2::text,
       publish_attempts = o.publish_attempts + (o.publish_attempts < 2147483647)::int,
       first_attempt_at = coalesce(o.first_attempt_at, statement_timestamp())
  FROM (SELECT t.id FROM outbox_events t WHERE t.id = ANY ($1::uuid[]) AND t.state = 'PENDING'
           FOR UPDATE SKIP LOCKED) pick
 WHERE o.id = ANY (ARRAY[pick.id]);

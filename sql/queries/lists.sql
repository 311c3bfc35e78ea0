-- Lists of events and messages. Reading changes nothing. In filters, a null parameter means: any.
-- A list goes down an index, the latest first, and looks at so many rows at most; the row at which this ends comes
-- last, whether it fits or not, unless enough were found before. Unfinished rows have an index on their time. Finished
-- ones are in no index but those of ids and correlation ids, which spares every event and message the upkeep: a list
-- of them goes down the primary key, where ids tell when they were made (UUIDv7). For that the adapter puts the id
-- where rows are ordered by their time.

-- name: list_outbox
-- Events by state, time and content.
-- Indexes: idx_outbox_dead where only dead ones are asked for, idx_outbox_unpublished where no published ones are,
-- idx_outbox_correlation, the primary key; otherwise the whole table is read.
-- $1 states, $2 no published ones are among them, $3 ids, $4 event type, $5 ordering key,
-- $6 aggregate type, $7 aggregate id, $8 correlation id, $9 occurred since, $10 occurred before,
-- $11 part of the error, $12 id that they come after, $13 lowest id, $14 id that they are below,
-- $15 rows to look at, null: all, $16 limit.
SELECT *
  FROM (
    SELECT o.*, row_number() OVER (ORDER BY o.occurred_at DESC, o.seq DESC) AS place
      FROM (
        SELECT *
          FROM (
            SELECT o.id, o.seq, o.aggregate_type, o.aggregate_id, o.event_type, o.event_version, o.ordering_key,
                   o.correlation_id, o.state, o.publish_attempts AS attempts, o.failures, o.created_at,
                   o.occurred_at, o.available_at, o.claimed_at, o.claimed_by, o.published_at, o.stream, o.stream_seq,
                   o.publish_error AS last_error,
                   o.state = ANY ($1::text[])
                   AND ($4::text IS NULL OR o.event_type = $4)
                   AND ($5::text IS NULL OR o.ordering_key = $5)
                   AND ($6::text IS NULL OR o.aggregate_type = $6)
                   AND ($7::text IS NULL OR o.aggregate_id = $7)
                   AND ($11::text IS NULL OR strpos(lower(o.publish_error), lower($11)) > 0) AS fits
              FROM outbox_events o
             WHERE (NOT $2::boolean OR o.published_at IS NULL)
               AND ($1::text[] <> '{DEAD}' OR NOT o.is_open)
               AND ($3::text[] IS NULL OR o.id = ANY ($3::uuid[]))
               AND ($8::uuid IS NULL OR o.correlation_id = $8)
               AND ($9::timestamptz IS NULL OR o.occurred_at >= $9)
               AND ($10::timestamptz IS NULL OR o.occurred_at < $10)
               AND ($12::uuid IS NULL
                    OR o.occurred_at <= (SELECT b.occurred_at FROM outbox_events b WHERE b.id = $12))
               AND ($12::uuid IS NULL
                    OR (o.occurred_at, o.seq) < (SELECT b.occurred_at, b.seq FROM outbox_events b WHERE b.id = $12))
               AND ($13::uuid IS NULL OR o.id >= $13)
               AND ($14::uuid IS NULL OR o.id < $14)
          ) o
         WHERE $15::bigint IS NOT NULL OR o.fits
         ORDER BY o.occurred_at DESC, o.seq DESC
         LIMIT coalesce($15::bigint, $16::bigint)
      ) o
  ) o
 WHERE o.fits OR o.place = $15::bigint
 ORDER BY o.occurred_at DESC, o.seq DESC
 LIMIT $16::bigint;

-- name: unfinished_of_key
-- Ids of events of an ordering key that are not published. Indexes: idx_outbox_ordering, idx_outbox_dead.
-- $1 ordering key, $2 limit.
SELECT o.id
  FROM outbox_events o
 WHERE o.is_open AND o.ordering_key IS NOT NULL AND o.ordering_key = $1::text
 UNION ALL
SELECT o.id
  FROM outbox_events o
 WHERE NOT o.is_open AND o.published_at IS NULL AND o.ordering_key = $1::text
 LIMIT $2::bigint;

-- name: show_outbox
-- All of one event. Index: the primary key.
-- $1 id.
SELECT o.id, o.seq, o.aggregate_type, o.aggregate_id, o.event_type, o.event_version, o.ordering_key,
       o.correlation_id, o.state, o.publish_attempts AS attempts, o.failures, o.created_at, o.occurred_at,
       o.available_at, o.claimed_at, o.claimed_by, o.published_at, o.stream, o.stream_seq,
       o.publish_error AS last_error, o.causation_id, o.partition_key, o.first_attempt_at,
       o.payload::text AS payload, o.headers::text AS headers, o.metadata::text AS metadata
  FROM outbox_events o
 WHERE o.id = $1::uuid;

-- name: list_inbox
-- Messages by state, time and origin.
-- Indexes: idx_inbox_unprocessed where no processed ones are asked for, the primary key; otherwise the whole table is
-- read.
-- $1 states, $2 no processed ones are among them, $3 ids, $4 consumer, $5 subject, $6 reason of the dead letter,
-- $7 received since, $8 received before, $9 part of the error, $10 id that they come after, $11 lowest id,
-- $12 id that they are below, $13 rows to look at, null: all, $14 limit.
SELECT *
  FROM (
    SELECT i.*, row_number() OVER (ORDER BY i.received_at DESC, i.message_id DESC) AS place
      FROM (
        SELECT i.*
          FROM (
            SELECT i.*,
                   i.state = ANY ($1::text[])
                   AND ($4::text IS NULL OR i.consumer = $4)
                   AND ($5::text IS NULL OR i.subject = $5)
                   AND ($6::text IS NULL OR i.dead_letter_reason = $6)
                   AND ($9::text IS NULL OR strpos(lower(i.last_error), lower($9)) > 0) AS fits
              FROM (
                SELECT i.message_id, i.subject, i.consumer, i.stream, i.stream_seq, i.received_at, i.processed_at,
                       i.attempts, i.last_error, i.locked_until, i.locked_by, i.dead_letter_reason,
                       i.dead_letter_begun_at, i.dead_lettered_at,
                       CASE WHEN i.processed_at IS NOT NULL THEN 'PROCESSED'
                            WHEN i.dead_lettered_at IS NOT NULL THEN 'DEAD_LETTERED'
                            WHEN i.locked_until > now() THEN 'HANDLING'
                            ELSE 'WAITING' END AS state
                  FROM inbox_messages i
                 WHERE (NOT $2::boolean OR i.processed_at IS NULL)
                   AND ($3::text[] IS NULL OR i.message_id = ANY ($3::uuid[]))
                   AND ($7::timestamptz IS NULL OR i.received_at >= $7)
                   AND ($8::timestamptz IS NULL OR i.received_at < $8)
                   AND ($10::uuid IS NULL
                        OR i.received_at <= (SELECT b.received_at FROM inbox_messages b WHERE b.message_id = $10))
                   AND ($10::uuid IS NULL
                        OR (i.received_at, i.message_id) < (SELECT b.received_at, b.message_id
                                                              FROM inbox_messages b WHERE b.message_id = $10))
                   AND ($11::uuid IS NULL OR i.message_id >= $11)
                   AND ($12::uuid IS NULL OR i.message_id < $12)
              ) i
          ) i
         WHERE $13::bigint IS NOT NULL OR i.fits
         ORDER BY i.received_at DESC, i.message_id DESC
         LIMIT coalesce($13::bigint, $14::bigint)
      ) i
  ) i
 WHERE i.fits OR i.place = $13::bigint
 ORDER BY i.received_at DESC, i.message_id DESC
 LIMIT $14::bigint;

-- name: highest_ids
-- The highest id of each table, which tells whether ids tell when they were made. Indexes: both primary keys.
SELECT (SELECT id FROM outbox_events ORDER BY id DESC LIMIT 1) AS outbox,
       (SELECT message_id FROM inbox_messages ORDER BY message_id DESC LIMIT 1) AS inbox;

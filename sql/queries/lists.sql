-- Lists of events and messages. Reading changes nothing. In filters, a null parameter means: any.
-- Finished rows are in no index but those of ids and correlation ids, which spares every event and message the upkeep.
-- So a list of them goes down the primary key, where ids tell when they were made (UUIDv7), and looks at so many rows
-- at most.

-- name: list_outbox
-- Events by state, time and content, the latest first by when they occurred.
-- Indexes: idx_outbox_dead where only dead ones are asked for, idx_outbox_unpublished where no published ones are,
-- idx_outbox_correlation, the primary key; otherwise the whole table is read.
-- $1 states, $2 no published ones are among them, $3 ids, $4 event type, $5 ordering key,
-- $6 aggregate type, $7 aggregate id, $8 correlation id, $9 created since, $10 created before, $11 part of the error,
-- $12 id that they come after, $13 limit.
SELECT o.id, o.seq, o.aggregate_type, o.aggregate_id, o.event_type, o.event_version, o.ordering_key,
       o.correlation_id, o.state, o.publish_attempts AS attempts, o.failures, o.created_at, o.occurred_at,
       o.available_at, o.claimed_at, o.claimed_by, o.published_at, o.stream, o.stream_seq,
       o.publish_error AS last_error
  FROM outbox_events o
 WHERE o.state = ANY ($1::text[])
   AND (NOT $2::boolean OR o.published_at IS NULL)
   AND ($1::text[] <> '{DEAD}' OR NOT o.is_open)
   AND ($3::text[] IS NULL OR o.id = ANY ($3::uuid[]))
   AND ($4::text IS NULL OR o.event_type = $4)
   AND ($5::text IS NULL OR o.ordering_key = $5)
   AND ($6::text IS NULL OR o.aggregate_type = $6)
   AND ($7::text IS NULL OR o.aggregate_id = $7)
   AND ($8::uuid IS NULL OR o.correlation_id = $8)
   AND ($9::timestamptz IS NULL OR o.created_at >= $9)
   AND ($10::timestamptz IS NULL OR o.created_at < $10)
   AND ($11::text IS NULL OR strpos(lower(o.publish_error), lower($11)) > 0)
   AND ($12::uuid IS NULL
        OR o.occurred_at <= (SELECT b.occurred_at FROM outbox_events b WHERE b.id = $12))
   AND ($12::uuid IS NULL
        OR (o.occurred_at, o.seq) < (SELECT b.occurred_at, b.seq FROM outbox_events b WHERE b.id = $12))
 ORDER BY o.occurred_at DESC, o.seq DESC
 LIMIT $13::bigint;

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

-- name: latest_outbox
-- Events of every state, the latest first by id. The row at which the reading ends comes last, whether it fits or not,
-- unless enough were found before.
-- Index: the primary key.
-- $1 lowest id, $2 id that they are below, $3 rows to read at most, null: all,
-- $4 states, $5 event type, $6 ordering key, $7 aggregate type, $8 aggregate id, $9 part of the error, $10 limit.
SELECT *
  FROM (
    SELECT o.id, o.seq, o.aggregate_type, o.aggregate_id, o.event_type, o.event_version, o.ordering_key,
           o.correlation_id, o.state, o.publish_attempts AS attempts, o.failures, o.created_at, o.occurred_at,
           o.available_at, o.claimed_at, o.claimed_by, o.published_at, o.stream, o.stream_seq,
           o.publish_error AS last_error,
           row_number() OVER (ORDER BY o.id DESC) AS place,
           o.state = ANY ($4::text[])
           AND ($5::text IS NULL OR o.event_type = $5)
           AND ($6::text IS NULL OR o.ordering_key = $6)
           AND ($7::text IS NULL OR o.aggregate_type = $7)
           AND ($8::text IS NULL OR o.aggregate_id = $8)
           AND ($9::text IS NULL OR strpos(lower(o.publish_error), lower($9)) > 0) AS fits
      FROM outbox_events o
     WHERE ($1::uuid IS NULL OR o.id >= $1)
       AND ($2::uuid IS NULL OR o.id < $2)
     ORDER BY o.id DESC
     LIMIT $3::bigint
  ) o
 WHERE o.fits OR o.place = $3::bigint
 ORDER BY o.id DESC
 LIMIT $10::bigint;

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
-- Messages by state, time and origin, the latest first by when they were received.
-- Indexes: idx_inbox_unprocessed where processed ones are not asked for, the primary key; otherwise the whole
-- table is read.
-- $1 states, $2 no processed ones are among them, $3 ids, $4 consumer, $5 subject, $6 reason of the dead letter,
-- $7 received since, $8 received before, $9 part of the error, $10 id that they come after, $11 limit.
SELECT *
  FROM (
    SELECT i.message_id, i.subject, i.consumer, i.stream, i.stream_seq, i.received_at, i.processed_at, i.attempts,
           i.last_error, i.locked_until, i.locked_by, i.dead_letter_reason, i.dead_letter_begun_at,
           i.dead_lettered_at,
           CASE WHEN i.processed_at IS NOT NULL THEN 'PROCESSED'
                WHEN i.dead_lettered_at IS NOT NULL THEN 'DEAD_LETTERED'
                WHEN i.locked_until > now() THEN 'HANDLING'
                ELSE 'WAITING' END AS state
      FROM inbox_messages i
     WHERE NOT $2::boolean OR i.processed_at IS NULL
  ) i
 WHERE i.state = ANY ($1::text[])
   AND ($3::text[] IS NULL OR i.message_id = ANY ($3::uuid[]))
   AND ($4::text IS NULL OR i.consumer = $4)
   AND ($5::text IS NULL OR i.subject = $5)
   AND ($6::text IS NULL OR i.dead_letter_reason = $6)
   AND ($7::timestamptz IS NULL OR i.received_at >= $7)
   AND ($8::timestamptz IS NULL OR i.received_at < $8)
   AND ($9::text IS NULL OR strpos(lower(i.last_error), lower($9)) > 0)
   AND ($10::uuid IS NULL
        OR i.received_at <= (SELECT b.received_at FROM inbox_messages b WHERE b.message_id = $10))
   AND ($10::uuid IS NULL
        OR (i.received_at, i.message_id) < (SELECT b.received_at, b.message_id
                                              FROM inbox_messages b WHERE b.message_id = $10))
 ORDER BY i.received_at DESC, i.message_id DESC
 LIMIT $11::bigint;

-- name: latest_inbox
-- Messages in the same way.
-- Index: the primary key.
-- $1 lowest id, $2 id that they are below, $3 rows to read at most, null: all,
-- $4 states, $5 consumer, $6 subject, $7 reason of the dead letter, $8 part of the error, $9 limit.
SELECT *
  FROM (
    SELECT i.*,
           i.state = ANY ($4::text[])
           AND ($5::text IS NULL OR i.consumer = $5)
           AND ($6::text IS NULL OR i.subject = $6)
           AND ($7::text IS NULL OR i.dead_letter_reason = $7)
           AND ($8::text IS NULL OR strpos(lower(i.last_error), lower($8)) > 0) AS fits
      FROM (
        SELECT i.message_id, i.subject, i.consumer, i.stream, i.stream_seq, i.received_at, i.processed_at,
               i.attempts, i.last_error, i.locked_until, i.locked_by, i.dead_letter_reason,
               i.dead_letter_begun_at, i.dead_lettered_at,
               CASE WHEN i.processed_at IS NOT NULL THEN 'PROCESSED'
                    WHEN i.dead_lettered_at IS NOT NULL THEN 'DEAD_LETTERED'
                    WHEN i.locked_until > now() THEN 'HANDLING'
                    ELSE 'WAITING' END AS state,
               row_number() OVER (ORDER BY i.message_id DESC) AS place
          FROM inbox_messages i
         WHERE ($1::uuid IS NULL OR i.message_id >= $1)
           AND ($2::uuid IS NULL OR i.message_id < $2)
         ORDER BY i.message_id DESC
         LIMIT $3::bigint
      ) i
  ) i
 WHERE i.fits OR i.place = $3::bigint
 ORDER BY i.message_id DESC
 LIMIT $9::bigint;

-- name: highest_ids
-- The highest id of each table, which tells whether ids tell when they were made. Indexes: both primary keys.
SELECT (SELECT id FROM outbox_events ORDER BY id DESC LIMIT 1) AS outbox,
       (SELECT message_id FROM inbox_messages ORDER BY message_id DESC LIMIT 1) AS inbox;

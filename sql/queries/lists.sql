-- Lists of events and messages. Reading changes nothing. A filter that is null matches everything.
--
-- A list reads down an index, the latest row first, and looks at no more than :read_max rows (null: no limit). If it
-- stops there before it has found :limit rows, the row at which it stopped comes last, even if the filter rejects it
-- (fits is false), so that the next page can start after it.
--
-- Unfinished rows have an index on their time. Finished rows have none but those on ids and correlation ids, which
-- spares each event and message the upkeep of another index. So a list that includes finished rows reads down the
-- primary key (list_..._by_id), if ids contain their time (UUIDv7).

-- fragment: event_summary
-- Names are cut: an event with longer ones can never be published, and a page of them could fill a worker's memory.
o.id, o.seq, left(o.aggregate_type, 65536) AS aggregate_type, left(o.aggregate_id, 65536) AS aggregate_id,
left(o.event_type, 1024) AS event_type, o.event_version, o.ordering_key, o.correlation_id,
o.state, o.publish_attempts AS attempts, o.failures, o.created_at, o.occurred_at, o.available_at, o.claimed_at, o.claimed_by,
o.published_at, o.stream, o.stream_seq, o.publish_error AS last_error

-- fragment: event_fits
o.state = ANY (:states::text[])
AND (:event_type::text IS NULL OR o.event_type = :event_type)
AND (:ordering_key::text IS NULL OR o.ordering_key = :ordering_key)
AND (:aggregate_type::text IS NULL OR o.aggregate_type = :aggregate_type)
AND (:aggregate_id::text IS NULL OR o.aggregate_id = :aggregate_id)
AND (:error_like::text IS NULL OR strpos(lower(o.publish_error), lower(:error_like)) > 0)

-- name: list_outbox
-- Events by time of occurrence. :finished: PUBLISHED is among the states.
-- Indexes: idx_outbox_dead for DEAD events alone, idx_outbox_unpublished without PUBLISHED ones,
-- idx_outbox_correlation, the primary key; otherwise the whole table is read.
SELECT *
  FROM (
    SELECT o.*, row_number() OVER (ORDER BY o.occurred_at DESC, o.seq DESC) AS place
      FROM (
        SELECT *
          FROM (
            SELECT :event_summary, :event_fits AS fits
              FROM outbox_events o
             WHERE (:finished::boolean OR o.published_at IS NULL)
               AND (:states::text[] OPERATOR(pg_catalog.<>) '{DEAD}' OR NOT o.is_open)
               AND (:ids::text[] IS NULL OR o.id = ANY (:ids::uuid[]))
               AND (:correlation_id::uuid IS NULL OR o.correlation_id = :correlation_id)
               AND (:since::timestamptz IS NULL OR o.occurred_at >= :since)
               AND (:until::timestamptz IS NULL OR o.occurred_at < :until)
               AND (:before_id::uuid IS NULL
                    OR o.occurred_at <= (SELECT b.occurred_at FROM outbox_events b WHERE b.id = :before_id))
               AND (:before_id::uuid IS NULL
                    OR (o.occurred_at, o.seq)
                       < (SELECT b.occurred_at, b.seq FROM outbox_events b WHERE b.id = :before_id))
          ) o
         WHERE :read_max::bigint IS NOT NULL OR o.fits
         ORDER BY o.occurred_at DESC, o.seq DESC
         LIMIT coalesce(:read_max::bigint, :limit::bigint)
      ) o
  ) o
 WHERE o.fits OR o.place = :read_max::bigint
 ORDER BY o.occurred_at DESC, o.seq DESC
 LIMIT :limit::bigint;

-- name: list_outbox_by_id
-- Events of any state by id: from :first_id on and below :below_id. Index: the primary key.
SELECT *
  FROM (
    SELECT o.*, row_number() OVER (ORDER BY o.id DESC) AS place
      FROM (
        SELECT *
          FROM (
            SELECT :event_summary, :event_fits AS fits
              FROM outbox_events o
             WHERE (:first_id::uuid IS NULL OR o.id >= :first_id)
               AND (:below_id::uuid IS NULL OR o.id < :below_id)
          ) o
         WHERE :read_max::bigint IS NOT NULL OR o.fits
         ORDER BY o.id DESC
         LIMIT coalesce(:read_max::bigint, :limit::bigint)
      ) o
  ) o
 WHERE o.fits OR o.place = :read_max::bigint
 ORDER BY o.id DESC
 LIMIT :limit::bigint;

-- name: unfinished_of_key
-- Ids of the events of an ordering key that are not published. Indexes: idx_outbox_ordering, idx_outbox_dead.
SELECT o.id
  FROM outbox_events o
 WHERE o.is_open AND o.ordering_key IS NOT NULL AND o.ordering_key = :ordering_key::text
 UNION ALL
SELECT o.id
  FROM outbox_events o
 WHERE NOT o.is_open AND o.published_at IS NULL AND o.ordering_key = :ordering_key::text
 LIMIT :limit::bigint;

-- name: show_outbox
-- All columns of one event, with at most :content_max characters of each text. Index: the primary key.
SELECT :event_summary, o.causation_id, left(o.partition_key, :content_max::int) AS partition_key, o.first_attempt_at,
       left(o.payload::text, :content_max::int) AS payload, octet_length(o.payload::text) AS payload_bytes,
       left(o.headers::text, :content_max::int) AS headers, left(o.metadata::text, :content_max::int) AS metadata
  FROM outbox_events o
 WHERE o.id = :id::uuid;

-- fragment: message
SELECT i.message_id, i.subject, i.consumer, i.stream, i.stream_seq, i.received_at, i.processed_at, i.attempts,
       i.last_error, i.locked_until, i.locked_by, i.dead_letter_reason, i.dead_letter_begun_at, i.dead_lettered_at,
       CASE WHEN i.processed_at IS NOT NULL THEN 'PROCESSED'
            WHEN i.dead_lettered_at IS NOT NULL THEN 'DEAD_LETTERED'
            WHEN i.locked_until > now() THEN 'HANDLING'
            ELSE 'WAITING' END AS state
  FROM inbox_messages i

-- fragment: message_fits
i.state = ANY (:states::text[])
AND (:consumer::text IS NULL OR i.consumer = :consumer)
AND (:subject::text IS NULL OR i.subject = :subject)
AND (:reason::text IS NULL OR i.dead_letter_reason = :reason)
AND (:error_like::text IS NULL OR strpos(lower(i.last_error), lower(:error_like)) > 0)

-- name: list_inbox
-- Messages by time of receipt. :finished: PROCESSED is among the states.
-- Indexes: idx_inbox_unprocessed without PROCESSED messages, the primary key; otherwise the whole table is read.
SELECT *
  FROM (
    SELECT i.*, row_number() OVER (ORDER BY i.received_at DESC, i.message_id DESC) AS place
      FROM (
        SELECT i.*
          FROM (
            SELECT i.*, :message_fits AS fits
              FROM (
                :message
                 WHERE (:finished::boolean OR i.processed_at IS NULL)
                   AND (:ids::text[] IS NULL OR i.message_id = ANY (:ids::uuid[]))
                   AND (:since::timestamptz IS NULL OR i.received_at >= :since)
                   AND (:until::timestamptz IS NULL OR i.received_at < :until)
                   AND (:before_id::uuid IS NULL
                        OR i.received_at
                           <= (SELECT b.received_at FROM inbox_messages b WHERE b.message_id = :before_id))
                   AND (:before_id::uuid IS NULL
                        OR (i.received_at, i.message_id)
                           < (SELECT b.received_at, b.message_id
                                FROM inbox_messages b WHERE b.message_id = :before_id))
              ) i
          ) i
         WHERE :read_max::bigint IS NOT NULL OR i.fits
         ORDER BY i.received_at DESC, i.message_id DESC
         LIMIT coalesce(:read_max::bigint, :limit::bigint)
      ) i
  ) i
 WHERE i.fits OR i.place = :read_max::bigint
 ORDER BY i.received_at DESC, i.message_id DESC
 LIMIT :limit::bigint;

-- name: list_inbox_by_id
-- Messages of any state by id: from :first_id on and below :below_id. Index: the primary key.
SELECT *
  FROM (
    SELECT i.*, row_number() OVER (ORDER BY i.message_id DESC) AS place
      FROM (
        SELECT i.*
          FROM (
            SELECT i.*, :message_fits AS fits
              FROM (
                :message
                 WHERE (:first_id::uuid IS NULL OR i.message_id >= :first_id)
                   AND (:below_id::uuid IS NULL OR i.message_id < :below_id)
              ) i
          ) i
         WHERE :read_max::bigint IS NOT NULL OR i.fits
         ORDER BY i.message_id DESC
         LIMIT coalesce(:read_max::bigint, :limit::bigint)
      ) i
  ) i
 WHERE i.fits OR i.place = :read_max::bigint
 ORDER BY i.message_id DESC
 LIMIT :limit::bigint;

-- name: highest_ids
-- The highest id of each table: it shows whether ids contain their time. Indexes: both primary keys.
SELECT (SELECT id FROM outbox_events ORDER BY id DESC LIMIT 1) AS outbox,
       (SELECT message_id FROM inbox_messages ORDER BY message_id DESC LIMIT 1) AS inbox;

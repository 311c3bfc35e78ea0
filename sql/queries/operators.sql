-- Statements of operators: queries, which change nothing, and changes, each in the same transaction as its record in
-- operator_actions. A filter that is null matches everything. The exact depth is in depth.sql.

-- ===== Lists of events and messages
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

-- ===== Depths with a limit, groups, and what `where` finds

-- name: outbox_depth_capped
-- QRY-050 for a gauge: as outbox_depth in depth.sql, with each number capped at a limit. Each order is that of one
-- index, which the planner then takes also while it expects no row.
-- Indexes: idx_outbox_unpublished, idx_outbox_dead, idx_outbox_due, idx_outbox_retry, both again for keys.
-- $1 limit.
WITH counted AS MATERIALIZED (
    SELECT (SELECT count(*) FROM (
                (SELECT FROM outbox_events
                  WHERE is_open AND ordering_key IS NULL AND publish_error IS NULL AND available_at <= now()
                  ORDER BY available_at LIMIT $1::int)
                 UNION ALL
                (SELECT FROM outbox_events
                  WHERE is_open AND ordering_key IS NOT NULL AND publish_error IS NULL AND available_at <= now()
                  ORDER BY available_at LIMIT $1::int)
                 UNION ALL
                (SELECT FROM outbox_events WHERE is_open AND ordering_key IS NULL AND publish_error IS NOT NULL
                  ORDER BY available_at LIMIT $1::int)
                 UNION ALL
                (SELECT FROM outbox_events WHERE is_open AND ordering_key IS NOT NULL AND publish_error IS NOT NULL
                  ORDER BY available_at LIMIT $1::int)
                 LIMIT $1::int) x) AS waiting,
           (SELECT count(*) FROM (
                (SELECT FROM outbox_events
                  WHERE is_open AND ordering_key IS NULL AND publish_error IS NULL AND available_at > now()
                  ORDER BY available_at LIMIT $1::int)
                 UNION ALL
                (SELECT FROM outbox_events
                  WHERE is_open AND ordering_key IS NOT NULL AND publish_error IS NULL AND available_at > now()
                  ORDER BY available_at LIMIT $1::int)
                 LIMIT $1::int) x) AS scheduled,
           (SELECT count(*) FROM (SELECT FROM outbox_events
             WHERE published_at IS NULL AND occurred_at > now() AND is_open AND publish_error IS NULL
               AND available_at > now() AND created_at > clock_timestamp() AND available_at <= LEAST(created_at, '9999-12-31Z') + interval '1 minute'
             LIMIT $1::int) x) AS ahead,
           (SELECT count(*) FROM (SELECT FROM outbox_events
             WHERE NOT is_open AND published_at IS NULL
             ORDER BY ordering_key, seq LIMIT $1::int) x) AS dead
), since AS (
    (SELECT GREATEST(available_at, '0001-01-01Z') AS at FROM outbox_events
      WHERE is_open AND ordering_key IS NULL AND publish_error IS NULL AND available_at <= now()
      ORDER BY available_at LIMIT 1)
     UNION ALL
    (SELECT GREATEST(available_at, '0001-01-01Z') FROM outbox_events
      WHERE is_open AND ordering_key IS NOT NULL AND publish_error IS NULL AND available_at <= now()
      ORDER BY available_at LIMIT 1)
     UNION ALL
    (SELECT LEAST(GREATEST(coalesce(first_attempt_at, occurred_at), '0001-01-01Z'), '9999-12-31Z') FROM outbox_events
      WHERE is_open AND ordering_key IS NULL AND publish_error IS NOT NULL
      ORDER BY available_at LIMIT 1000)
     UNION ALL
    (SELECT LEAST(GREATEST(coalesce(first_attempt_at, occurred_at), '0001-01-01Z'), '9999-12-31Z') FROM outbox_events
      WHERE is_open AND ordering_key IS NOT NULL AND publish_error IS NOT NULL
      ORDER BY available_at LIMIT 1000)
)
SELECT LEAST(waiting + scheduled + dead, $1::int) AS count,
       (SELECT occurred_at FROM outbox_events WHERE published_at IS NULL ORDER BY occurred_at LIMIT 1) AS oldest_at,
       waiting,
       (SELECT extract(epoch FROM clock_timestamp() - min(at))::float8 FROM since) AS waiting_seconds,
       scheduled, dead
  FROM (SELECT waiting + ahead AS waiting, GREATEST(scheduled - ahead, 0) AS scheduled, dead FROM counted) counted;

-- name: inbox_depth_capped
-- QRY-051 for a gauge, with capped numbers.
-- Indexes: idx_inbox_unprocessed, idx_inbox_dead_lettered.
-- $1 limit.
SELECT (SELECT count(*) FROM (SELECT FROM inbox_messages WHERE processed_at IS NULL LIMIT $1::int) x) AS count,
       (SELECT received_at FROM inbox_messages WHERE processed_at IS NULL ORDER BY received_at LIMIT 1) AS oldest_at,
       (SELECT count(*) FROM (SELECT FROM inbox_messages
                               WHERE processed_at IS NULL AND dead_lettered_at IS NULL LIMIT $1::int) x) AS waiting,
       (SELECT extract(epoch FROM clock_timestamp() - LEAST(GREATEST(received_at, '0001-01-01Z'), '9999-12-31Z'))::float8
          FROM inbox_messages
         WHERE processed_at IS NULL AND dead_lettered_at IS NULL ORDER BY received_at LIMIT 1) AS waiting_seconds,
       0 AS scheduled,
       (SELECT count(*) FROM (SELECT dead_letter_reason FROM inbox_messages WHERE dead_lettered_at IS NOT NULL
                               ORDER BY dead_lettered_at DESC LIMIT $1::int) x
         WHERE dead_letter_reason IS DISTINCT FROM 'CLOSED') AS dead;

-- name: read_ahead
-- Unprocessed messages of a consumer that it has not delivered yet: a worker has read them ahead of their delivery.
-- has_oldest: the inbox has the oldest message that the consumer has not delivered, processed or not.
-- Index: idx_inbox_unprocessed and the primary key. $1 stream, $2 durable, $3 sequence up to which it has delivered,
-- $4 limit, $5 id of the oldest message or null.
SELECT count(*) AS count, EXISTS (SELECT FROM inbox_messages WHERE message_id = $5::uuid) AS has_oldest
  FROM (SELECT FROM inbox_messages
         WHERE processed_at IS NULL AND stream = $1::text AND consumer = $2::text AND stream_seq > $3::bigint
         LIMIT $4::int) x;

-- fragment: largest
-- All groups by state, and the largest ones of each other kind.
SELECT kind, name, count, oldest_at
  FROM (SELECT k.*, row_number() OVER (PARTITION BY k.kind ORDER BY k.count DESC, k.name) AS place
          FROM kinds k WHERE k.name IS NOT NULL) ranked
 WHERE place <= $2::bigint OR kind = 'state'
 ORDER BY kind, place

-- name: outbox_summary
-- Unfinished events grouped by state, by type, by ordering key and by error, the largest groups first, with the time of
-- the oldest. Errors that differ only in numbers count as one, except for error codes.
-- Index: idx_outbox_unpublished; reads only the oldest events, up to a limit.
-- $1 limit of events, $2 limit of groups of a kind, $3 and $4 as in NUMBERS and MARKED in operators/records.py.
WITH seen AS MATERIALIZED (
    SELECT o.state, o.event_type, o.ordering_key, o.occurred_at AS at,
           regexp_replace(regexp_replace(o.publish_error, $3::text, '\1#', 'g'), $4::text, '\1', 'g') AS error
      FROM outbox_events o
     WHERE o.published_at IS NULL
     ORDER BY o.occurred_at
     LIMIT $1::bigint
), kinds AS (
    SELECT 'state' AS kind, state AS name, count(*) AS count, min(at) AS oldest_at FROM seen GROUP BY state
     UNION ALL
    SELECT 'type', event_type, count(*), min(at) FROM seen GROUP BY event_type
     UNION ALL
    SELECT 'key', ordering_key, count(*), min(at) FROM seen GROUP BY ordering_key
     UNION ALL
    SELECT 'error', error, count(*), min(at) FROM seen GROUP BY error
)
:largest;

-- name: inbox_summary
-- The same for unprocessed messages: by state, subject, consumer and error.
-- Index: idx_inbox_unprocessed; reads only the oldest messages, up to a limit.
-- $1 limit of messages, $2 limit of groups of a kind, $3 and $4 as in NUMBERS and MARKED in operators/records.py.
WITH seen AS MATERIALIZED (
    SELECT i.subject, i.consumer, i.received_at AS at,
           CASE WHEN i.dead_lettered_at IS NOT NULL THEN 'DEAD_LETTERED'
                WHEN i.locked_until > now() THEN 'HANDLING'
                ELSE 'WAITING' END AS state,
           regexp_replace(regexp_replace(i.last_error, $3::text, '\1#', 'g'), $4::text, '\1', 'g') AS error
      FROM inbox_messages i
     WHERE i.processed_at IS NULL
     ORDER BY i.received_at
     LIMIT $1::bigint
), kinds AS (
    SELECT 'state' AS kind, state AS name, count(*) AS count, min(at) AS oldest_at FROM seen GROUP BY state
     UNION ALL
    SELECT 'subject', subject, count(*), min(at) FROM seen GROUP BY subject
     UNION ALL
    SELECT 'consumer', consumer, count(*), min(at) FROM seen GROUP BY consumer
     UNION ALL
    SELECT 'error', error, count(*), min(at) FROM seen GROUP BY error
)
:largest;

-- name: discarded
-- Actor and reason of an event's `outbox discard`. Reads the table, which has one row for each operator action.
-- $1 id.
SELECT a.at, a.actor, a.reason, one.event->>'event_type'::text AS event_type, one.event->>'error'::text AS error
  FROM operator_actions a
 CROSS JOIN LATERAL jsonb_array_elements(a.selection->'discarded'::text) AS one (event)
 WHERE a.action = 'discard' AND one.event->>'id'::text = $1::text
 ORDER BY a.id DESC
 LIMIT 1;

-- name: session_is_held
-- Whether a connection holds the lock of a worker's session. Reads the server's locks, and takes none.
-- $1 session.
SELECT EXISTS (
    SELECT FROM pg_locks l
     WHERE l.locktype = 'advisory' AND l.granted AND l.classid = 7184::oid AND l.objsubid = 2
       AND l.objid = ('x' || $1::text)::bit(32)::bigint::oid
       AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
);

-- name: ids_between
-- Events and messages with an id in a range, such as ids with the same prefix. Indexes: both primary keys.
-- $1 lowest id, $2 highest id, $3 limit for each side.
(SELECT 'outbox' AS side, o.id, o.state, o.event_type AS name, o.created_at AS at
   FROM outbox_events o WHERE o.id BETWEEN $1::uuid AND $2::uuid ORDER BY o.id LIMIT $3::bigint)
 UNION ALL
(SELECT 'inbox', i.message_id,
        CASE WHEN i.processed_at IS NOT NULL THEN 'PROCESSED'
             WHEN i.dead_lettered_at IS NOT NULL THEN 'DEAD_LETTERED'
             WHEN i.locked_until > now() THEN 'HANDLING'
             ELSE 'WAITING' END,
        i.subject, i.received_at
   FROM inbox_messages i WHERE i.message_id BETWEEN $1::uuid AND $2::uuid ORDER BY i.message_id LIMIT $3::bigint);

-- name: earlier_of_key
-- The earlier events of its ordering key that an event waits for, the earliest first: unfinished ones, and dead ones if
-- these hold their key.
-- Indexes: idx_outbox_ordering, idx_outbox_dead.
-- $1 ordering key, $2 seq, $3 limit, $4 dead ones hold their key.
SELECT e.id, e.state, e.last_error
  FROM (
    (SELECT o.id, o.seq, o.state, o.publish_error AS last_error
       FROM outbox_events o
      WHERE o.is_open AND o.ordering_key IS NOT NULL AND o.ordering_key = $1::text AND o.seq < $2::bigint
      ORDER BY o.seq
      LIMIT $3::bigint)
     UNION ALL
    (SELECT o.id, o.seq, o.state, o.publish_error
       FROM outbox_events o
      WHERE $4::boolean AND NOT o.is_open AND o.published_at IS NULL
        AND o.ordering_key = $1::text AND o.seq < $2::bigint
      ORDER BY o.seq
      LIMIT $3::bigint)
  ) e
 ORDER BY e.seq
 LIMIT $3::bigint;

-- name: conflicts
-- Messages that arrived under a known id with other content, and were dead-lettered under an id of their own: the
-- latest among the latest 10000 dead-lettered messages. Index: idx_inbox_dead_lettered.
-- $1 reason, $2 their error, $3 limit.
SELECT x.message_id
  FROM (SELECT message_id, dead_letter_reason, last_error, dead_lettered_at
          FROM inbox_messages WHERE dead_lettered_at IS NOT NULL
         ORDER BY dead_lettered_at DESC LIMIT 10000) x
 WHERE x.dead_letter_reason = $1::text AND x.last_error = $2::text
 ORDER BY x.dead_lettered_at DESC
 LIMIT $3::bigint;

-- ===== Samples for the worker's page, at a cost that does not depend on the backlog

-- name: overview
-- Reasons of DEAD events and of dead-lettered messages that no operator closed, the most frequent first, from a limited
-- number of rows; and the number of workers, by the session that each of them keeps open for its maintenance.
-- Indexes: idx_outbox_dead, idx_inbox_dead_lettered.
-- $1 limit of rows, $2 limit of reasons, $3 name of the sessions.
(SELECT 'outbox' AS kind, left(o.publish_error, 200) AS name, count(*) AS count
   FROM (SELECT d.publish_error FROM outbox_events d
          WHERE NOT d.is_open AND d.published_at IS NULL LIMIT $1::int) o
  GROUP BY left(o.publish_error, 200) ORDER BY count(*) DESC LIMIT $2::int)
 UNION ALL
(SELECT 'inbox', i.dead_letter_reason, count(*)
   FROM (SELECT d.dead_letter_reason FROM inbox_messages d
          WHERE d.dead_lettered_at IS NOT NULL ORDER BY d.dead_lettered_at DESC LIMIT $1::int) i
  WHERE i.dead_letter_reason IS DISTINCT FROM 'CLOSED'
  GROUP BY i.dead_letter_reason ORDER BY count(*) DESC LIMIT $2::int)
 UNION ALL
SELECT 'workers', NULL, count(*)
  FROM pg_catalog.pg_stat_activity a
 WHERE a.datname = current_database() AND a.application_name = $3::text;

-- name: dead_events
-- DEAD events, the latest first, from a limited number of rows.
-- Index: idx_outbox_dead.
-- $1 event type, $2 part of the error, $3 seq below, $4 limit of rows, $5 limit; null means any.
SELECT *
  FROM (SELECT o.id, o.seq, left(o.event_type, 1024) AS event_type, o.ordering_key, o.failures, o.created_at, o.publish_error AS last_error
          FROM outbox_events o
         WHERE NOT o.is_open AND o.published_at IS NULL
           AND ($1::text IS NULL OR o.event_type = $1)
           AND ($2::text IS NULL OR strpos(lower(o.publish_error), lower($2)) > 0)
           AND ($3::bigint IS NULL OR o.seq < $3)
         LIMIT $4::int) dead
 ORDER BY dead.seq DESC
 LIMIT $5::int;

-- ===== The audit

-- name: audit
-- Operators' actions, the latest first. A running or interrupted action has no outcome.
-- Index: the primary key.
SELECT id, at, actor, action, reason, selection::text AS selection, affected,
       coalesce(outcome, 'open') AS outcome, login
  FROM operator_actions
 WHERE (:actor_like::text IS NULL OR strpos(lower(actor), lower(:actor_like)) > 0)
   AND (:action::text IS NULL OR action = :action)
   AND (:since::timestamptz IS NULL OR at >= :since)
   AND (:until::timestamptz IS NULL OR at < :until)
   AND (:before_id::bigint IS NULL OR id < :before_id)
 ORDER BY id DESC
 LIMIT :limit::bigint;

-- ===== Changes

-- name: begin_action
-- Opens the record of an action with several steps; each step adds its changes.
-- $1 actor, $2 action, $3 reason, $4 selection.
INSERT INTO operator_actions (actor, action, reason, selection, affected)
VALUES ($1::text, $2::text, $3::text, $4::text::jsonb, 0)
RETURNING id;

-- name: finish_action
-- Closes a record; nothing about it changes afterwards. A redrive changes one message or none.
-- $1 action, $2 outcome.
UPDATE operator_actions a
   SET outcome = $2::text, affected = a.affected + (a.action = 'redrive' AND $2::text = 'done')::int
 WHERE a.id = $1::bigint AND a.outcome IS NULL;

-- name: make_due
-- First of three steps by which an operator ends PENDING events: makes them due and locks them. The lifecycle has no
-- transition PENDING -> DEAD, and only a due event can be claimed. Index: the primary key.
-- $1 ids.
UPDATE outbox_events o
   SET available_at = LEAST(o.available_at, now())
 WHERE o.id = ANY ($1::uuid[]) AND o.state = 'PENDING'
RETURNING o.id;

-- name: claim_as_operator
-- Second of the three steps: PENDING -> CLAIMED.
-- $1 ids, $2 actor.
UPDATE outbox_events o
   SET state = 'CLAIMED', claimed_at = statement_timestamp(), claimed_by = 'operator ' || $2::text,
       publish_attempts = o.publish_attempts + (o.publish_attempts < 2147483647)::int
 WHERE o.id = ANY ($1::uuid[]);

-- name: mark_dead
-- Last of the three steps: CLAIMED -> DEAD, counted in the audit record.
-- $1 ids, $2 error, $3 action.
WITH ended AS (
    UPDATE outbox_events o
       SET state = 'DEAD', claimed_at = NULL, claimed_by = NULL, publish_error = left($2::text, 2000)
     WHERE o.id = ANY ($1::uuid[])
    RETURNING 1
)
UPDATE operator_actions a
   SET affected = a.affected + (SELECT count(*) FROM ended),
       outcome = CASE WHEN EXISTS (SELECT FROM ended) THEN 'done' ELSE 'refused' END
 WHERE a.id = $3::bigint;

-- name: discard
-- Deletes DEAD events for good, and records everything about them except their contents. An event that is not DEAD at
-- that time stays. Index: the primary key.
-- $1 ids, $2 actor, $3 reason, $4 selection.
WITH discarded AS (
    DELETE FROM outbox_events o
     WHERE o.id = ANY ($1::uuid[]) AND o.state = 'DEAD'
    RETURNING o.id, o.seq, o.aggregate_type, o.aggregate_id, o.event_type, o.ordering_key, o.created_at, o.publish_error
), recorded AS (
    INSERT INTO operator_actions (actor, action, reason, selection, affected, outcome)
    SELECT $2::text, 'discard', $3::text,
           $4::text::jsonb || pg_catalog.jsonb_build_object('discarded', coalesce(pg_catalog.jsonb_agg(
               pg_catalog.jsonb_build_object(
                   'id', d.id, 'aggregate_type', d.aggregate_type, 'aggregate_id', d.aggregate_id,
                   'event_type', d.event_type, 'ordering_key', d.ordering_key, 'created_at', d.created_at,
                   'error', d.publish_error) ORDER BY d.seq), '[]')),
           count(*), CASE WHEN count(*) > 0 THEN 'done' ELSE 'refused' END
      FROM discarded d
)
SELECT id FROM discarded;

-- name: redriven
-- Opens a dead-lettered message, so that its next delivery is handled. last_error keeps the reason, and
-- dead_letter_begun_at shows that its dead letter may still be in the stream.
-- open: it is not processed; reopened: it was dead-lettered; action: the record, to be finished with the outcome.
-- Index: the primary key.
-- $1 message id, $2 actor, $3 reason.
WITH reopened AS (
    UPDATE inbox_messages i
       SET dead_lettered_at = NULL, dead_letter_reason = NULL, attempts = 0
     WHERE i.message_id = $1::uuid AND i.dead_lettered_at IS NOT NULL AND i.processed_at IS NULL
    RETURNING 1
), recorded AS (
    INSERT INTO operator_actions (actor, action, reason, selection, affected)
    VALUES ($2::text, 'redrive', $3::text, pg_catalog.jsonb_build_object('message_id', $1::uuid), 0)
    RETURNING id
)
SELECT NOT EXISTS (SELECT FROM inbox_messages i
                    WHERE i.message_id = $1::uuid AND i.processed_at IS NOT NULL) AS open,
       EXISTS (SELECT FROM reopened) AS reopened,
       (SELECT id FROM recorded) AS action;

-- name: close_messages
-- Closes unsettled messages that no worker leases: their reason is CLOSED, and they have no dead letter. They are never
-- handled again. Index: the primary key.
-- $1 ids, $2 note, $3 action.
WITH closed AS (
    UPDATE inbox_messages i
       SET dead_letter_reason = 'CLOSED', dead_lettered_at = clock_timestamp(),
           dead_letter_begun_at = coalesce(i.dead_letter_begun_at, clock_timestamp()),
           last_error = left(pg_catalog.concat_ws('; ', $2::text, i.last_error), 2000),
           locked_until = NULL, locked_by = NULL, reply = NULL
     WHERE i.message_id = ANY ($1::uuid[]) AND i.processed_at IS NULL AND i.dead_lettered_at IS NULL
       AND (i.locked_until IS NULL OR i.locked_until <= now())
    RETURNING i.message_id
), counted AS (
    UPDATE operator_actions a
       SET affected = a.affected + (SELECT count(*) FROM closed),
           outcome = CASE WHEN EXISTS (SELECT FROM closed) THEN 'done' ELSE 'refused' END
     WHERE a.id = $3::bigint
)
SELECT message_id FROM closed;

-- name: record_purge
-- Records, before a dead letter is deleted, that its message is given up. may_go is false, and nothing is recorded, if
-- the message is open again, as during a redrive. Index: the primary key.
-- $1 message id, $2 note, $3 action.
WITH known AS MATERIALIZED (
    SELECT i.message_id, i.processed_at IS NULL AND i.dead_lettered_at IS NULL AS is_open
      FROM inbox_messages i
     WHERE i.message_id = $1::uuid
       FOR UPDATE
), noted AS (
    UPDATE inbox_messages i
       SET dead_letter_reason = 'CLOSED', last_error = left(pg_catalog.concat_ws('; ', $2::text, i.last_error), 2000)
      FROM known
     WHERE i.message_id = ANY (ARRAY[known.message_id]) AND i.dead_lettered_at IS NOT NULL
), counted AS (
    UPDATE operator_actions a
       SET affected = a.affected + 1
     WHERE a.id = $3::bigint AND NOT EXISTS (SELECT FROM known WHERE is_open)
)
SELECT NOT EXISTS (SELECT FROM known WHERE is_open) AS may_go;

-- ===== Replay: events go back into the outbox portion by portion, in the order of seq
--
-- Each portion is one statement, which also updates the record in operator_actions. The record's selection is the
-- filter, with "progress": through, the highest seq done, and finished; so an interrupted replay continues where it
-- stopped.

-- name: choose
-- Events to replay, in the order of seq. A filter that is null matches everything. :finished: PUBLISHED is among the
-- states. :through and :begun_at continue a replay: events up to that seq are done, and an event that was published
-- since it began may be its own work.
-- Index: the primary key or idx_outbox_correlation for ids or a correlation, idx_outbox_dead for DEAD events alone;
-- otherwise the whole table is read.
SELECT o.id, o.seq, o.published_at
  FROM outbox_events o
 WHERE o.state = ANY (:states::text[])
   AND (:finished::boolean OR NOT o.is_open AND o.published_at IS NULL)
   AND (:ids::text[] IS NULL OR o.id = ANY (:ids::uuid[]))
   AND (:event_type::text IS NULL OR o.event_type = :event_type)
   AND (:ordering_key::text IS NULL OR o.ordering_key = :ordering_key)
   AND (:aggregate_type::text IS NULL OR o.aggregate_type = :aggregate_type)
   AND (:aggregate_id::text IS NULL OR o.aggregate_id = :aggregate_id)
   AND (:correlation_id::uuid IS NULL OR o.correlation_id = :correlation_id)
   AND (:since::timestamptz IS NULL OR o.created_at >= :since)
   AND (:until::timestamptz IS NULL OR o.created_at < :until)
   AND (:error_like::text IS NULL OR strpos(lower(o.publish_error), lower(:error_like)) > 0)
   AND o.seq > :through::bigint
   AND (:begun_at::timestamptz IS NULL OR o.published_at IS NULL OR o.published_at < :begun_at)
 ORDER BY o.seq
 LIMIT :limit::bigint;

-- name: begin_replay
INSERT INTO operator_actions (actor, action, reason, selection, affected)
VALUES (:actor::text, 'replay', :reason::text,
        :selection::text::jsonb || pg_catalog.jsonb_build_object('progress',
            pg_catalog.jsonb_build_object('through', 0, 'finished', false)), 0)
RETURNING id;

-- name: load_replay
SELECT id, at, actor, reason, selection::text AS selection, affected
  FROM operator_actions
 WHERE id = :action::bigint AND action = 'replay';

-- name: put_back
-- PUBLISHED or DEAD -> PENDING: a new lifecycle, with the same id and the same place in the order of its key.
-- It is due immediately. stream and stream_seq stay, so that the relay can distinguish the earlier copy from the new one:
-- an event that the stream drops as a repeat of that copy waits until the deduplication window is over.
-- is_mine is false, and nothing changes, if another run has continued the same replay.
-- Index: the primary key.
WITH mine AS MATERIALIZED (
    SELECT a.id FROM operator_actions a
     WHERE a.id = :action::bigint AND (a.selection #>> '{progress,through}'::text[])::bigint = :through::bigint
       FOR UPDATE
), replayed AS (
    UPDATE outbox_events o
       SET state = 'PENDING', published_at = NULL, publish_attempts = 0, failures = 0, publish_error = NULL,
           first_attempt_at = NULL, available_at = now()
     WHERE o.id = ANY (:ids::uuid[]) AND o.state IN ('PUBLISHED', 'DEAD') AND EXISTS (SELECT FROM mine)
    RETURNING 1
), counted AS (
    UPDATE operator_actions a
       SET affected = a.affected + (SELECT count(*) FROM replayed),
           selection = pg_catalog.jsonb_set(a.selection, '{progress,through}', pg_catalog.to_jsonb(:last_seq::bigint))
      FROM mine
     WHERE a.id = mine.id
)
SELECT EXISTS (SELECT FROM mine) AS is_mine, (SELECT count(*) FROM replayed) AS count;

-- name: not_taken
-- Those of the given events that no worker has claimed yet. An event that waits for a failing event of its key, or for
-- a dead one that holds its key, is left out, since it delays no other.
-- Indexes: the primary key, idx_outbox_ordering, idx_outbox_dead.
SELECT o.id
  FROM outbox_events o
 WHERE o.id = ANY (:ids::uuid[]) AND o.state = 'PENDING' AND o.publish_attempts = 0
   AND NOT EXISTS (
       SELECT FROM outbox_events e
        WHERE e.is_open AND e.ordering_key IS NOT NULL AND e.ordering_key = o.ordering_key AND e.seq < o.seq
          AND e.publish_error IS NOT NULL)
   AND NOT (:hold_dead_keys::boolean AND EXISTS (
       SELECT FROM outbox_events dead
        WHERE NOT dead.is_open AND dead.published_at IS NULL
          AND dead.ordering_key = o.ordering_key AND dead.seq < o.seq));

-- name: finish_replay
UPDATE operator_actions a
   SET selection = pg_catalog.jsonb_set(a.selection, '{progress,finished}', 'true'), outcome = 'done'
 WHERE a.id = :action::bigint;

-- ===== Prune: old finished rows, range of pages after range of pages, without an index
--
-- A range belongs to one relation: for a partitioned table, the name of a partition replaces the table's.
-- $1 first page, $2 page after the last, $3 finished before, $4 action.

-- fragment: in_range
old.ctid >= pg_catalog.format('(%s,0)', $1::bigint)::tid AND old.ctid < pg_catalog.format('(%s,0)', $2::bigint)::tid

-- fragment: is_settled
-- Processed, or closed by an operator; dead-lettered messages and those still to be handled stay.
(old.processed_at < $3::timestamptz OR old.dead_letter_reason = 'CLOSED' AND old.dead_lettered_at < $3::timestamptz)

-- fragment: is_referenced
-- Whether a foreign key keeps the row; replaced by the conditions of `references` in leaves.sql.
old.ctid IS NULL

-- fragment: prune_counted
counted AS (
    UPDATE operator_actions a
       SET affected = a.affected + (SELECT count(*) FROM pruned)
     WHERE a.id = $4::bigint AND EXISTS (SELECT FROM pruned)
)
SELECT count(*) AS count FROM pruned

-- name: prune_outbox
-- Deletes published events.
WITH pruned AS (
    DELETE FROM outbox_events old
     WHERE :in_range AND old.published_at < $3::timestamptz AND NOT (:is_referenced) RETURNING 1
), :prune_counted;

-- name: prune_inbox
-- Deletes processed and closed messages.
WITH pruned AS (
    DELETE FROM inbox_messages old WHERE :in_range AND :is_settled AND NOT (:is_referenced) RETURNING 1
), :prune_counted;

-- name: count_outbox
-- Number of events that `prune_outbox` would delete, number of those that a foreign key keeps, and number of all.
SELECT count(*) FILTER (WHERE old.published_at < $3::timestamptz AND NOT (:is_referenced)) AS count,
       count(*) FILTER (WHERE old.published_at < $3::timestamptz AND (:is_referenced)) AS referenced, count(*) AS rows
  FROM outbox_events old
 WHERE :in_range;

-- name: count_inbox
-- The same for `prune_inbox`.
SELECT count(*) FILTER (WHERE :is_settled AND NOT (:is_referenced)) AS count,
       count(*) FILTER (WHERE :is_settled AND (:is_referenced)) AS referenced, count(*) AS rows
  FROM inbox_messages old
 WHERE :in_range;

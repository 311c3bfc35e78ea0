-- The inbox consumer's statements. Several workers may run all of them at once; each is one transaction.
-- Time is the database's. A lease is a pair of message id and token. The worker with a row's token holds its lease, even
-- after its end, until another worker takes it. A lease that ends later than twice its length from now is also over: it
-- was taken before the clock was set back, and a live holder would have extended it since.
-- A statement that finds a row for each element of an array compares the row's ID with an array of one, which PostgreSQL
-- can only look up in the primary key. By a plain comparison, a plan that was made for an empty table might read the
-- whole index for each batch.
-- A statement that finds an unsettled row by its id uses coalesce instead of two IS NULL. Otherwise the planner might
-- read idx_inbox_unprocessed, which is usually small, and compare all of it with each lease.

-- name: insert
-- Records a batch and leases what is to be handled (CMD-051). A known row that is neither processed nor
-- dead-lettered is no duplicate: it is leased again once nobody holds it. One with another content is left alone.
-- Repeated under its token, because the answer was lost, it leases what it has leased, and counts nothing twice.
-- Sorted by id, so that two batches that overlap cannot lock each other out.
-- Index: the primary key.
-- One element for each message, no id twice: $1 ids, $2 subjects, $3 consumers, $4 streams, $5 sequences,
-- $6 content hashes, $7 reply subjects; $8 token, $9 lease in seconds. An empty or zero element: unknown.
-- Returns, in no order, a row with verdict run for each message that it leased, and one with done, conflict or busy
-- for each that was known before, the leased ones among them included. One without a row was committed by somebody
-- else during the statement: busy.
WITH received AS MATERIALIZED (
    SELECT message_id, subject, nullif(consumer, '') AS consumer, nullif(stream, '') AS stream,
           nullif(stream_seq, 0) AS stream_seq, nullif(content_hash, '') AS content_hash, reply
      FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bytea[], $7::text[])
           AS r (message_id, subject, consumer, stream, stream_seq, content_hash, reply)
), leased AS (
    INSERT INTO inbox_messages AS i
           (message_id, subject, attempts, consumer, stream, stream_seq, content_hash, reply, locked_until, locked_by)
    SELECT message_id, subject, 1, consumer, stream, stream_seq, content_hash, reply,
           clock_timestamp() + $9::float8 * interval '1 second', $8::text
      FROM received
     ORDER BY message_id
    ON CONFLICT (message_id) DO UPDATE
       SET attempts = i.attempts + (i.locked_by IS DISTINCT FROM excluded.locked_by AND i.attempts < 2147483647)::int,
           consumer = excluded.consumer,
           stream = excluded.stream,
           stream_seq = excluded.stream_seq,
           content_hash = coalesce(i.content_hash, excluded.content_hash),
           reply = excluded.reply,
           locked_until = excluded.locked_until,
           locked_by = excluded.locked_by
     WHERE i.processed_at IS NULL AND i.dead_lettered_at IS NULL
       AND (i.locked_until IS NULL OR i.locked_until > clock_timestamp() + 2::float8 * $9::float8 * interval '1 second'
            OR i.locked_until <= clock_timestamp() OR i.locked_by = excluded.locked_by)
       AND coalesce(i.content_hash = excluded.content_hash, true)
    RETURNING i.message_id, i.attempts,
              CASE WHEN i.dead_letter_begun_at IS NOT NULL THEN extract(epoch FROM clock_timestamp()
                  - LEAST(GREATEST(i.dead_letter_begun_at, '0001-01-01Z'), '9999-12-31Z'))::float8 END AS begun_seconds_ago
)
SELECT message_id::text AS message_id, 'run' AS verdict, attempts, begun_seconds_ago, NULL AS consumer
  FROM leased
 UNION ALL
SELECT known.message_id::text,
       CASE WHEN known.content_hash <> received.content_hash THEN 'conflict'
            WHEN known.processed_at IS NOT NULL OR known.dead_lettered_at IS NOT NULL THEN 'done'
            ELSE 'busy' END,
       known.attempts, NULL, known.consumer
  FROM received JOIN inbox_messages known ON known.message_id = ANY (ARRAY[received.message_id]);

-- name: overdue
-- Unsettled messages of a consumer that no worker leases and that were recorded long ago, or in the future before the
-- clock was set back; the oldest first.
-- Index: idx_inbox_unprocessed; the dead-lettered messages in it are skipped, 0.1 ms for each 1000.
-- $1 stream, $2 consumer, $3 least age in seconds, $4 message id that they come after or null, $5 limit,
-- $6 lease in seconds.
SELECT i.message_id::text AS message_id, i.subject, i.consumer, i.stream, i.stream_seq, i.content_hash
  FROM inbox_messages i
 WHERE i.processed_at IS NULL AND i.dead_lettered_at IS NULL
   AND i.stream = $1::text AND i.consumer = $2::text
   AND i.stream_seq IS NOT NULL AND i.content_hash IS NOT NULL
   AND (i.locked_until IS NULL OR i.locked_until <= now()
        OR i.locked_until > now() + 2::float8 * $6::float8 * interval '1 second')
   AND i.received_at NOT BETWEEN now() - $3::float8 * interval '1 second' AND clock_timestamp()
   AND i.received_at >= coalesce((SELECT b.received_at FROM inbox_messages b WHERE b.message_id = $4::uuid),
                                 '-infinity')
   AND ($4::uuid IS NULL
        OR (i.received_at, i.message_id) > (SELECT b.received_at, b.message_id
                                              FROM inbox_messages b WHERE b.message_id = $4::uuid))
 ORDER BY i.received_at, i.message_id
 LIMIT $5::bigint;

-- name: extend
-- Sets the end of leases to their length from now, earlier than before if the clock was set back. Index: the primary key.
-- $1 message ids, sorted, and $2 their tokens; $3 seconds from now.
UPDATE inbox_messages i
   SET locked_until = clock_timestamp() + $3::float8 * interval '1 second'
  FROM unnest($1::uuid[], $2::text[]) AS held (message_id, token)
 WHERE i.message_id = ANY (ARRAY[held.message_id]) AND i.locked_by = held.token
   AND coalesce(i.processed_at, i.dead_lettered_at) IS NULL
RETURNING i.message_id::text AS message_id;

-- name: mark_processed
-- Records the handler's success and ends the lease (CMD-051, POL-047-004). Index: the primary key.
-- $1 message ids, sorted, and $2 their tokens.
UPDATE inbox_messages i
   SET processed_at = GREATEST(clock_timestamp(), i.received_at), last_error = NULL,
       locked_until = NULL, locked_by = NULL, reply = NULL
  FROM unnest($1::uuid[], $2::text[]) AS held (message_id, token)
 WHERE i.message_id = ANY (ARRAY[held.message_id]) AND i.locked_by = held.token
   AND coalesce(i.processed_at, i.dead_lettered_at) IS NULL
RETURNING i.message_id::text AS message_id;

-- name: record_error
-- Records a handling without an effect and ends the lease. Index: the primary key.
-- $1 message ids, sorted, and $2 their tokens; $3 errors, $4 attempts to give back.
UPDATE inbox_messages i
   SET last_error = left(held.error, 2000), attempts = GREATEST(i.attempts - held.given_back, 0),
       locked_until = NULL, locked_by = NULL, reply = NULL
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::int[]) AS held (message_id, token, error, given_back)
 WHERE i.message_id = ANY (ARRAY[held.message_id]) AND i.locked_by = held.token
   AND coalesce(i.processed_at, i.dead_lettered_at) IS NULL
RETURNING i.message_id::text AS message_id;

-- name: begin_dead_letter
-- Records that a dead letter may be in its stream from now on; the earliest such time stays. Index: the primary key.
-- $1 message id, $2 its token, $3 reason, $4 detail.
UPDATE inbox_messages i
   SET dead_letter_reason = $3::text, last_error = left($3::text || ': ' || $4::text, 2000),
       dead_letter_begun_at = coalesce(i.dead_letter_begun_at, clock_timestamp())
 WHERE i.message_id = $1::uuid AND i.locked_by = $2::text
   AND coalesce(i.processed_at, i.dead_lettered_at) IS NULL
RETURNING i.message_id::text AS message_id;

-- name: mark_dead_lettered
-- Records that the stream has the dead letter, and ends the lease (CMD-052). Index: the primary key.
-- $1 message ids, sorted, and $2 their tokens; one that was not begun is left alone.
UPDATE inbox_messages i
   SET dead_lettered_at = clock_timestamp(), locked_until = NULL, locked_by = NULL, reply = NULL
  FROM unnest($1::uuid[], $2::text[]) AS held (message_id, token)
 WHERE i.message_id = ANY (ARRAY[held.message_id]) AND i.locked_by = held.token
   AND coalesce(i.processed_at, i.dead_lettered_at) IS NULL AND i.dead_letter_begun_at IS NOT NULL
RETURNING i.message_id::text AS message_id;

-- name: take_over
-- Ends the leases of a worker that is gone. It does nothing while a connection of that worker holds the lock of its
-- session, and keeps a worker that comes back from doing anything until it has ended. The attempts stay counted.
-- Index: idx_inbox_unprocessed, as a whole: max_ack_pending bounds the messages in it; dead-lettered ones are passed
-- over.
-- $1 session.
-- Returns a row for each lease that ended: where its message came from, its attempts, and the reply subject by which
-- the server delivers it again.
WITH gone AS MATERIALIZED (
    SELECT '#' || $1::text AS mark WHERE pg_try_advisory_xact_lock(7184, ('x' || $1::text)::bit(32)::int)
)
UPDATE inbox_messages i
   SET locked_until = NULL, locked_by = NULL
  FROM gone
 WHERE i.processed_at IS NULL AND i.dead_lettered_at IS NULL AND left(right(i.locked_by, 17), 9) = gone.mark
RETURNING i.stream, i.consumer, i.attempts, coalesce(i.reply, '') AS reply;

-- name: resumed
-- Event types that operators resumed recently, by the audit, and how long ago; an empty type means all. Workers
-- query only while an event type is slow. Index: the primary key, from its end on.
-- $1 seconds.
SELECT latest.selection ->> 'event_type'::text AS event_type,
       extract(epoch FROM clock_timestamp() - latest.at)::float8 AS seconds_ago
  FROM (SELECT a.at, a.action, a.selection FROM operator_actions a ORDER BY a.id DESC LIMIT 1000) latest
 WHERE latest.action = 'resume' AND latest.at >= clock_timestamp() - $1::float8 * interval '1 second';

-- The relay's statements. Several relays may run all of them at once; each is one transaction.
-- Time is the database's: now() is the start of the statement, and unlike clock_timestamp() an index can use it.
-- What a statement has locked it finds again by its place, o.ctid, which is the cheapest join. In partitions a place is
-- not of one row only: there the adapter joins all of them by o.id, and the database refuses claims without it.

-- name: claim
-- Leases due events without an ordering key: the longest due first, a bounded share of them retried ones.
-- Indexes: idx_outbox_due, idx_outbox_retry.
-- $1 limit, $2 claimed_by, $3 $4 cursor (available_at, seq) of first tries, $5 $6 cursor of retries,
-- $7 places kept for retries; what either side leaves free the other one takes. $8 bytes that all events together may
-- have, $9 bytes of one event; $10 retries come first; $11 ids to pass over.
-- Of what is due it takes as much as fits into $8, one event at least, and a quarter of it retries. An event above $9
-- comes as withheld_bytes, without what is large, and takes no room.
-- One row (id is null) tells the time, claimed_at, where the next claim goes on, and whether $8 left
-- events over and how many bytes it took; each other is an event, from id
-- on with the columns of ClaimedEvent in their order. Neither has what the other has, which would be sent and read
-- for each event.
WITH waiting AS MATERIALIZED (
    SELECT o.ctid AS tid
      FROM outbox_events o
     WHERE o.is_open AND o.ordering_key IS NULL AND o.publish_error IS NOT NULL
       AND o.state = 'PENDING' AND o.available_at <= now()
       AND (o.available_at, o.seq) > ($5::timestamptz, $6::bigint) AND o.id <> ALL ($11::uuid[])
     ORDER BY o.available_at, o.seq
     LIMIT $1::int
), fresh AS MATERIALIZED (
    SELECT o.ctid AS tid, o.available_at, o.seq, CASE WHEN o.bytes <= $9::bigint THEN o.bytes ELSE 0 END AS bytes
      FROM outbox_events o
     WHERE o.is_open AND o.ordering_key IS NULL AND o.publish_error IS NULL
       AND o.state = 'PENDING' AND o.available_at <= now()
       AND (o.available_at, o.seq) > ($3::timestamptz, $4::bigint) AND o.id <> ALL ($11::uuid[])
     ORDER BY o.available_at, o.seq
     LIMIT $1::int - least($7::int, (SELECT count(*) FROM waiting))
       FOR UPDATE OF o SKIP LOCKED
), retried AS MATERIALIZED (
    SELECT waiting.tid, o.available_at, o.seq, CASE WHEN o.bytes <= $9::bigint THEN o.bytes ELSE 0 END AS bytes
      FROM waiting JOIN outbox_events o ON o.ctid = waiting.tid
     WHERE o.state = 'PENDING' AND o.available_at <= now()
     LIMIT $1::int - (SELECT count(*) FROM fresh)
       FOR UPDATE OF o SKIP LOCKED
), looked AS MATERIALIZED (
    SELECT tid, bytes, 4 * row_number() OVER (ORDER BY available_at, seq) - 4 * $10::boolean::int AS place FROM retried
     UNION ALL
    SELECT tid, bytes, nth + (nth - 1) / 3
      FROM (SELECT tid, bytes, row_number() OVER (ORDER BY available_at, seq) AS nth FROM fresh) f
), pick AS MATERIALIZED (
    SELECT tid, through
      FROM (SELECT tid, bytes, sum(bytes) OVER (ORDER BY place ROWS UNBOUNDED PRECEDING) AS through FROM looked) summed
     WHERE through <= $8::bigint OR through = bytes
), claimed AS (
    UPDATE outbox_events o
       SET state = 'CLAIMED', claimed_at = statement_timestamp(), claimed_by = $2::text,
           publish_attempts = o.publish_attempts + 1,
           first_attempt_at = coalesce(o.first_attempt_at, statement_timestamp())
      FROM pick
     WHERE o.ctid = pick.tid AND o.state = 'PENDING'
    RETURNING o.*
), head AS MATERIALIZED (
    SELECT now() AS at, statement_timestamp() AS claimed_at, fresh_last.available_at AS fresh_at,
           fresh_last.seq AS fresh_seq, retry_last.available_at AS retry_at, retry_last.seq AS retry_seq,
           (SELECT count(*) FROM pick) < (SELECT count(*) FROM looked) AS cut,
           (SELECT coalesce(max(through), 0)::bigint FROM pick) AS bytes
      FROM (SELECT 1) one
      LEFT JOIN (
        SELECT available_at, seq FROM claimed WHERE publish_error IS NULL
         ORDER BY available_at DESC, seq DESC LIMIT 1
      ) fresh_last ON true
      LEFT JOIN (
        SELECT available_at, seq FROM claimed WHERE publish_error IS NOT NULL
         ORDER BY available_at DESC, seq DESC LIMIT 1
      ) retry_last ON true
)
SELECT head.*, o.id::text AS id, o.seq,
       CASE WHEN o.bytes <= $9::bigint THEN o.aggregate_type ELSE '' END AS aggregate_type,
       CASE WHEN o.bytes <= $9::bigint THEN o.aggregate_id ELSE '' END AS aggregate_id,
       CASE WHEN o.bytes <= $9::bigint THEN o.event_type ELSE left(o.event_type, 255) END AS event_type, o.event_version,
       CASE WHEN o.bytes <= $9::bigint THEN convert_to(o.payload::text, 'UTF8') ELSE '' END AS payload,
       o.occurred_at, o.publish_attempts AS attempts, o.failures,
       greatest(0, date_part('epoch', o.claimed_at - least(o.available_at, o.first_attempt_at))) AS age_seconds,
       greatest(0, date_part('epoch', o.claimed_at - o.first_attempt_at)) AS attempted_seconds_ago,
       o.correlation_id::text AS correlation_id, o.causation_id::text AS causation_id,
       CASE WHEN o.bytes <= $9::bigint THEN o.partition_key END AS partition_key, o.ordering_key,
       CASE WHEN o.bytes <= $9::bigint THEN o.headers::text END AS headers,
       CASE WHEN o.bytes <= $9::bigint THEN o.metadata::text END AS metadata,
       coalesce(o.stream_seq, 0) AS earlier_stream_seq,
       CASE WHEN o.bytes <= $9::bigint THEN 0 ELSE o.bytes END AS withheld_bytes
  FROM head FULL JOIN claimed o ON false;

-- name: claim_ordered
-- Leases due events that have an ordering key, each with every earlier unfinished event of its key: the unbroken
-- run from the key's head. An event that has failed ends its run, so that a bad head drags nobody along.
-- The whole prefix of a key is locked and looked at again, so that an old snapshot can only claim less.
-- docs/explanation/ordering.md has a worked example.
-- Indexes: idx_outbox_due_ordered and idx_outbox_retry_ordered find the keys, idx_outbox_ordering their runs,
-- idx_outbox_dead what holds them.
-- $1 .. $6 as in claim, $1 also first tries looked at for keys; $7 retried events looked at ($1 where first tries are
-- few), $8 longest run of a key, $9 keys to look at besides, $10 take turns with other relays, $11 a dead event holds
-- its key, $12 and $13 as $8 and $9 of claim, $14 ids that end the run of their key.
-- Rows as in claim. my_turn false: another relay is claiming, nothing was looked at; fresh_* and retry_*: how many
-- were looked at and where the next claim goes on; leftover: keys of $9 or behind the cursor that have more to
-- claim; cut: $12 left events over; bytes: how many it took.
WITH gate AS MATERIALIZED (
    SELECT CASE WHEN $10::boolean
                THEN pg_try_advisory_xact_lock(7178, hashtext(current_schema()::text)) ELSE true END AS mine
), fresh AS MATERIALIZED (
    SELECT o.available_at, o.seq, o.ordering_key AS key
      FROM outbox_events o
     WHERE (SELECT mine FROM gate)
       AND o.is_open AND o.ordering_key IS NOT NULL AND o.publish_error IS NULL
       AND o.state = 'PENDING' AND o.available_at <= now()
       AND (o.available_at, o.seq) > ($3::timestamptz, $4::bigint)
     ORDER BY o.available_at, o.seq
     LIMIT $1::int
), retried AS MATERIALIZED (
    SELECT o.available_at, o.seq, o.ordering_key AS key
      FROM outbox_events o
     WHERE (SELECT mine FROM gate)
       AND o.is_open AND o.ordering_key IS NOT NULL AND o.publish_error IS NOT NULL
       AND o.state = 'PENDING' AND o.available_at <= now()
       AND (o.available_at, o.seq) > ($5::timestamptz, $6::bigint)
     ORDER BY o.available_at, o.seq
     LIMIT CASE WHEN (SELECT count(*) FROM fresh) < $1::int THEN $1::int ELSE $7::int END
), keys AS MATERIALIZED (
    SELECT key FROM retried
     UNION SELECT key FROM fresh
     UNION SELECT hint FROM pg_catalog.unnest($9::text[]) hint WHERE (SELECT mine FROM gate)
), run AS MATERIALIZED (
    SELECT due.tid, due.seq, due.available_at, due.retried, due.nth, due.bytes, keys.key
      FROM keys CROSS JOIN LATERAL (
        SELECT seen.*,
               row_number() OVER in_order AS nth,
               count(*) FILTER (WHERE NOT seen.ready) OVER in_order AS blocked,
               count(*) FILTER (WHERE seen.retried) OVER in_order AS retries
          FROM (
            SELECT o.ctid AS tid, o.seq, o.available_at, o.publish_error IS NOT NULL AS retried,
                   CASE WHEN o.bytes <= $13::bigint THEN o.bytes ELSE 0 END AS bytes,
                   o.state = 'PENDING' AND o.available_at <= now() AND o.id <> ALL ($14::uuid[])
                   AND NOT ($11::boolean AND EXISTS (
                       SELECT FROM outbox_events dead
                        WHERE NOT dead.is_open AND dead.published_at IS NULL
                          AND dead.ordering_key = keys.key AND dead.seq < o.seq)) AS ready
              FROM outbox_events o
             WHERE o.is_open AND o.ordering_key IS NOT NULL AND o.ordering_key = keys.key
             ORDER BY o.seq
             LIMIT $8::int
          ) seen
        WINDOW in_order AS (ORDER BY seen.seq ROWS UNBOUNDED PRECEDING)
      ) due
     WHERE due.blocked = 0 AND due.retries - due.retried::int = 0
), eligible AS MATERIALIZED (
    SELECT summed.*, pos <= $1::int AND (through <= $12::bigint OR through = bytes) AS fits
      FROM (SELECT run.*, row_number() OVER in_order AS pos, sum(run.bytes) OVER in_order AS through
              FROM run WINDOW in_order AS (ORDER BY run.seq ROWS UNBOUNDED PRECEDING)) summed
), locked AS MATERIALIZED (
    SELECT e.tid, e.seq, e.key, e.nth, e.bytes
      FROM eligible e JOIN outbox_events o ON o.ctid = e.tid
     WHERE e.fits AND o.state = 'PENDING' AND o.available_at <= now()
       FOR UPDATE OF o SKIP LOCKED
), pick AS MATERIALIZED (
    SELECT prefix.tid, prefix.bytes
      FROM (SELECT tid, nth, bytes, row_number() OVER (PARTITION BY key ORDER BY seq) AS got FROM locked) prefix
     WHERE prefix.nth = prefix.got
), claimed AS (
    UPDATE outbox_events o
       SET state = 'CLAIMED', claimed_at = statement_timestamp(), claimed_by = $2::text,
           publish_attempts = o.publish_attempts + 1,
           first_attempt_at = coalesce(o.first_attempt_at, statement_timestamp())
      FROM pick
     WHERE o.ctid = pick.tid AND o.state = 'PENDING'
    RETURNING o.*
), head AS MATERIALIZED (
    SELECT now() AS at, statement_timestamp() AS claimed_at, gate.mine AS my_turn,
           (SELECT count(*) FROM fresh) AS fresh_count, fresh_next.available_at AS fresh_at, fresh_next.seq AS fresh_seq,
           (SELECT count(*) FROM retried) AS retry_count, retry_next.available_at AS retry_at, retry_next.seq AS retry_seq,
           ARRAY(SELECT DISTINCT e.key FROM eligible e
                  WHERE NOT e.fits
                    AND (NOT e.retried AND (e.available_at, e.seq) <= ($3::timestamptz, $4::bigint)
                         OR e.retried AND (e.available_at, e.seq) <= ($5::timestamptz, $6::bigint))) AS leftover,
           EXISTS (SELECT FROM eligible e WHERE e.pos <= $1::int AND NOT e.fits) AS cut,
           (SELECT coalesce(sum(bytes), 0)::bigint FROM pick) AS bytes
      FROM gate
      LEFT JOIN (
        (SELECT available_at, seq FROM fresh ORDER BY available_at DESC, seq DESC LIMIT 1)
        UNION ALL
        (SELECT available_at, seq - 1 FROM eligible e
          WHERE NOT e.fits AND NOT e.retried AND (e.available_at, e.seq) > ($3::timestamptz, $4::bigint)
          ORDER BY available_at, seq LIMIT 1)
        ORDER BY available_at, seq LIMIT 1
      ) fresh_next ON true
      LEFT JOIN (
        (SELECT available_at, seq FROM retried ORDER BY available_at DESC, seq DESC LIMIT 1)
        UNION ALL
        (SELECT available_at, seq - 1 FROM eligible e
          WHERE NOT e.fits AND e.retried AND (e.available_at, e.seq) > ($5::timestamptz, $6::bigint)
          ORDER BY available_at, seq LIMIT 1)
        ORDER BY available_at, seq LIMIT 1
      ) retry_next ON true
)
SELECT head.*, o.id::text AS id, o.seq,
       CASE WHEN o.bytes <= $13::bigint THEN o.aggregate_type ELSE '' END AS aggregate_type,
       CASE WHEN o.bytes <= $13::bigint THEN o.aggregate_id ELSE '' END AS aggregate_id,
       CASE WHEN o.bytes <= $13::bigint THEN o.event_type ELSE left(o.event_type, 255) END AS event_type, o.event_version,
       CASE WHEN o.bytes <= $13::bigint THEN convert_to(o.payload::text, 'UTF8') ELSE '' END AS payload,
       o.occurred_at, o.publish_attempts AS attempts, o.failures,
       greatest(0, date_part('epoch', o.claimed_at - least(o.available_at, o.first_attempt_at))) AS age_seconds,
       greatest(0, date_part('epoch', o.claimed_at - o.first_attempt_at)) AS attempted_seconds_ago,
       o.correlation_id::text AS correlation_id, o.causation_id::text AS causation_id,
       CASE WHEN o.bytes <= $13::bigint THEN o.partition_key END AS partition_key, o.ordering_key,
       CASE WHEN o.bytes <= $13::bigint THEN o.headers::text END AS headers,
       CASE WHEN o.bytes <= $13::bigint THEN o.metadata::text END AS metadata,
       coalesce(o.stream_seq, 0) AS earlier_stream_seq,
       CASE WHEN o.bytes <= $13::bigint THEN 0 ELSE o.bytes END AS withheld_bytes
  FROM head FULL JOIN claimed o ON false;

-- name: mark_published
-- Writes down leased events that the stream has, and only those that the lease still covers: kept names them, and is
-- null where it covers all.
-- Index: the primary key.
-- $1 claimed_by and $2 claimed_at of the claim, $4 stream that the broker named; then one element for each event:
-- $3 id and $5 sequence.
WITH settled AS (
    UPDATE outbox_events o
       SET state = 'PUBLISHED', claimed_at = NULL, claimed_by = NULL,
           published_at = clock_timestamp(), publish_error = NULL,
           stream = $4::text, stream_seq = v.stream_seq
      FROM unnest($3::uuid[], $5::bigint[]) AS v (id, stream_seq)
     WHERE o.id = v.id AND o.state = 'CLAIMED' AND o.claimed_by = $1::text AND o.claimed_at = $2::timestamptz
    RETURNING o.id
)
SELECT CASE WHEN count(*) < cardinality($3::uuid[]) THEN coalesce(array_agg(id::text), '{}') END AS kept
  FROM settled;

-- name: settle
-- The same for what became of all others.
-- Index: the primary key.
-- $1 claimed_by and $2 claimed_at of the claim; then one element for each event: $3 id, $4 new state,
-- $5 error (null: none to tell), $6 failures to add, $7 seconds until due (null: unchanged).
-- An event that comes back without an error was never attempted, and its first attempt is still to come.
WITH settled AS (
    UPDATE outbox_events o
       SET state = v.state, claimed_at = NULL, claimed_by = NULL,
           publish_error = coalesce(left(v.error, 2000), o.publish_error),
           failures = o.failures + v.failed,
           available_at = coalesce(clock_timestamp() + v.delay_seconds * interval '1 second', o.available_at),
           first_attempt_at = CASE WHEN v.state = 'PENDING' AND v.error IS NULL AND o.first_attempt_at = o.claimed_at
                                   THEN NULL ELSE o.first_attempt_at END
      FROM unnest($3::uuid[], $4::text[], $5::text[], $6::int[], $7::float8[])
           AS v (id, state, error, failed, delay_seconds)
     WHERE o.id = v.id AND o.state = 'CLAIMED' AND o.claimed_by = $1::text AND o.claimed_at = $2::timestamptz
    RETURNING o.id
)
SELECT CASE WHEN count(*) < cardinality($3::uuid[]) THEN coalesce(array_agg(id::text), '{}') END AS kept
  FROM settled;

-- name: reap
-- Ends leases that ran out, in the lane of events without an ordering key, and brings forward what waits only because the
-- clock was set back. It looks at a bounded number of rows, whatever waits: claims take the longest due first, so that
-- what they left stands in front; all else is reached by looks that go on from one to the next.
-- A lease that ran out spends a failure of its event; the delay's jitter separates an event that kills its worker from
-- those that were claimed along with it. A lease of a time to come, longer ahead than it lasts, is ended and spends none.
-- Of a time to come are also events that nobody put off (created then, and due within a minute of it) and retries that
-- were first tried then or are due later than any delay.
-- Indexes: idx_outbox_due, idx_outbox_retry.
-- $1 lease in seconds, $2 limit, $3 failures that make an event dead, $4 rows to look at in either index, $5 $6 after which
-- (available_at, seq) of first tries, $7 $8 of retries; $9 longest delay of a retry in seconds.
-- Returns one row: the time, how many leases were ended and how many events were brought forward, the keys of both, and up
-- to where the look went in either index; null: to the end.
WITH fresh AS MATERIALIZED (
    SELECT o.ctid AS tid, o.available_at, o.seq, o.state, o.claimed_at,
           CASE WHEN o.state = 'CLAIMED' THEN abs(extract(epoch FROM now() - o.claimed_at)) > $1::float8
                ELSE o.available_at > now() AND o.created_at > now()
                     AND o.available_at <= o.created_at + interval '1 minute' END AS wrong
      FROM outbox_events o
     WHERE o.is_open AND o.ordering_key IS NULL AND o.publish_error IS NULL
       AND (o.available_at, o.seq) > ($5::timestamptz, $6::bigint)
     ORDER BY o.available_at, o.seq
     LIMIT $4::int
), retried AS MATERIALIZED (
    SELECT o.ctid AS tid, o.available_at, o.seq, o.state, o.claimed_at,
           CASE WHEN o.state = 'CLAIMED' THEN abs(extract(epoch FROM now() - o.claimed_at)) > $1::float8
                ELSE o.available_at > now()
                     AND (o.first_attempt_at > now() OR o.available_at > now() + $9::float8 * interval '1 second')
                END AS wrong
      FROM outbox_events o
     WHERE o.is_open AND o.ordering_key IS NULL AND o.publish_error IS NOT NULL
       AND (o.available_at, o.seq) > ($7::timestamptz, $8::bigint)
     ORDER BY o.available_at, o.seq
     LIMIT $4::int
), pick AS MATERIALIZED (
    SELECT seen.*, seen.claimed_at <= now() AS ran_out
      FROM (SELECT * FROM fresh WHERE wrong UNION ALL SELECT * FROM retried WHERE wrong LIMIT $2::int) seen
      JOIN outbox_events o ON o.ctid = seen.tid
     WHERE o.state = seen.state AND o.available_at = seen.available_at
       AND o.claimed_at IS NOT DISTINCT FROM seen.claimed_at
       FOR UPDATE OF o SKIP LOCKED
), ended AS (
    UPDATE outbox_events o
       SET state = CASE WHEN pick.ran_out AND o.failures + 1 >= $3::int THEN 'DEAD' ELSE 'PENDING' END,
           claimed_at = NULL, claimed_by = NULL, failures = o.failures + coalesce(pick.ran_out, false)::int,
           publish_error = CASE WHEN pick.ran_out THEN pg_catalog.format(
               'the lease of %s ran out after %s s', regexp_replace(o.claimed_by, '#[^#]*$', ''),
               round(extract(epoch FROM clock_timestamp() - o.claimed_at)::numeric, 1)) ELSE o.publish_error END,
           available_at = CASE WHEN pick.ran_out THEN
               clock_timestamp() + random() * least(2 ^ least(o.failures + 1, 6), 60) * interval '1 second'
               ELSE least(o.available_at, now()) END
      FROM pick
     WHERE o.ctid = pick.tid
    RETURNING pick.state AS was, o.ordering_key
)
SELECT now() AS at,
       (SELECT count(*) FROM ended WHERE was = 'CLAIMED') AS leases,
       (SELECT count(*) FROM ended WHERE was = 'PENDING') AS brought_forward,
       ARRAY(SELECT DISTINCT ordering_key FROM ended WHERE ordering_key IS NOT NULL) AS keys,
       fresh_last.available_at AS fresh_at, fresh_last.seq AS fresh_seq,
       retry_last.available_at AS retry_at, retry_last.seq AS retry_seq
  FROM (SELECT 1) one
  LEFT JOIN (SELECT available_at, seq FROM fresh ORDER BY available_at, seq OFFSET $4::int - 1) fresh_last ON true
  LEFT JOIN (SELECT available_at, seq FROM retried ORDER BY available_at, seq OFFSET $4::int - 1) retry_last ON true;

-- name: reap_ordered
-- The same in the lane of events that have one.
-- Indexes: idx_outbox_due_ordered, idx_outbox_retry_ordered.
-- $1 lease in seconds, $2 limit, $3 failures that make an event dead, $4 rows to look at in either index, $5 $6 after which
-- (available_at, seq) of first tries, $7 $8 of retries; $9 longest delay of a retry in seconds.
-- Returns one row: the time, how many leases were ended and how many events were brought forward, the keys of both, and up
-- to where the look went in either index; null: to the end.
WITH fresh AS MATERIALIZED (
    SELECT o.ctid AS tid, o.available_at, o.seq, o.state, o.claimed_at,
           CASE WHEN o.state = 'CLAIMED' THEN abs(extract(epoch FROM now() - o.claimed_at)) > $1::float8
                ELSE o.available_at > now() AND o.created_at > now()
                     AND o.available_at <= o.created_at + interval '1 minute' END AS wrong
      FROM outbox_events o
     WHERE o.is_open AND o.ordering_key IS NOT NULL AND o.publish_error IS NULL
       AND (o.available_at, o.seq) > ($5::timestamptz, $6::bigint)
     ORDER BY o.available_at, o.seq
     LIMIT $4::int
), retried AS MATERIALIZED (
    SELECT o.ctid AS tid, o.available_at, o.seq, o.state, o.claimed_at,
           CASE WHEN o.state = 'CLAIMED' THEN abs(extract(epoch FROM now() - o.claimed_at)) > $1::float8
                ELSE o.available_at > now()
                     AND (o.first_attempt_at > now() OR o.available_at > now() + $9::float8 * interval '1 second')
                END AS wrong
      FROM outbox_events o
     WHERE o.is_open AND o.ordering_key IS NOT NULL AND o.publish_error IS NOT NULL
       AND (o.available_at, o.seq) > ($7::timestamptz, $8::bigint)
     ORDER BY o.available_at, o.seq
     LIMIT $4::int
), pick AS MATERIALIZED (
    SELECT seen.*, seen.claimed_at <= now() AS ran_out
      FROM (SELECT * FROM fresh WHERE wrong UNION ALL SELECT * FROM retried WHERE wrong LIMIT $2::int) seen
      JOIN outbox_events o ON o.ctid = seen.tid
     WHERE o.state = seen.state AND o.available_at = seen.available_at
       AND o.claimed_at IS NOT DISTINCT FROM seen.claimed_at
       FOR UPDATE OF o SKIP LOCKED
), ended AS (
    UPDATE outbox_events o
       SET state = CASE WHEN pick.ran_out AND o.failures + 1 >= $3::int THEN 'DEAD' ELSE 'PENDING' END,
           claimed_at = NULL, claimed_by = NULL, failures = o.failures + coalesce(pick.ran_out, false)::int,
           publish_error = CASE WHEN pick.ran_out THEN pg_catalog.format(
               'the lease of %s ran out after %s s', regexp_replace(o.claimed_by, '#[^#]*$', ''),
               round(extract(epoch FROM clock_timestamp() - o.claimed_at)::numeric, 1)) ELSE o.publish_error END,
           available_at = CASE WHEN pick.ran_out THEN
               clock_timestamp() + random() * least(2 ^ least(o.failures + 1, 6), 60) * interval '1 second'
               ELSE least(o.available_at, now()) END
      FROM pick
     WHERE o.ctid = pick.tid
    RETURNING pick.state AS was, o.ordering_key
)
SELECT now() AS at,
       (SELECT count(*) FROM ended WHERE was = 'CLAIMED') AS leases,
       (SELECT count(*) FROM ended WHERE was = 'PENDING') AS brought_forward,
       ARRAY(SELECT DISTINCT ordering_key FROM ended WHERE ordering_key IS NOT NULL) AS keys,
       fresh_last.available_at AS fresh_at, fresh_last.seq AS fresh_seq,
       retry_last.available_at AS retry_at, retry_last.seq AS retry_seq
  FROM (SELECT 1) one
  LEFT JOIN (SELECT available_at, seq FROM fresh ORDER BY available_at, seq OFFSET $4::int - 1) fresh_last ON true
  LEFT JOIN (SELECT available_at, seq FROM retried ORDER BY available_at, seq OFFSET $4::int - 1) retry_last ON true;

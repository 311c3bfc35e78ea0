-- The statements of the outbox publisher. Several workers may run them at once; each statement is one transaction.
-- Time is the database's: now() is the start of the statement, and unlike clock_timestamp() an index can use it.
-- A statement finds a row that it has read or locked again by its place, ctid: that is the cheapest join. In an outbox
-- in partitions a place is unique only within a partition, so each such join also compares the ID. The ID is compared
-- with an array of one, which PostgreSQL can only look up in an index. By a plain comparison, a plan that is older than
-- the rows of a partition might read the partition's whole index, because that was free when the partition was empty.

-- fragment: event_columns
-- The columns of an event that a claim returns: the fields of OutboxEvent (outbox/event.py), in their order. An event
-- above :event_bytes_max comes without its large columns, and with its size in withheld_bytes; one that occurred in no
-- year from 1 to 9999, which no message can say, comes without the time.
o.id::text AS id, o.seq,
CASE WHEN o.bytes <= :event_bytes_max::bigint THEN o.aggregate_type ELSE '' END AS aggregate_type,
CASE WHEN o.bytes <= :event_bytes_max::bigint THEN o.aggregate_id ELSE '' END AS aggregate_id,
CASE WHEN o.bytes <= :event_bytes_max::bigint THEN o.event_type ELSE left(o.event_type, 255) END AS event_type,
o.event_version,
CASE WHEN o.bytes <= :event_bytes_max::bigint THEN pg_catalog.convert_to(o.payload::text, 'UTF8') ELSE '' END AS payload,
CASE WHEN o.occurred_at BETWEEN '0001-01-01Z' AND '9999-12-31Z' THEN o.occurred_at END AS occurred_at,
o.publish_attempts AS attempts, o.failures,
greatest(0, date_part('epoch', o.claimed_at - least(
    CASE WHEN o.available_at >= '0001-01-01Z' THEN o.available_at ELSE o.claimed_at END,
    greatest(o.first_attempt_at, '0001-01-01Z')))) AS age_seconds,
date_part('epoch', o.claimed_at - least(greatest(o.first_attempt_at, '0001-01-01Z'), '9999-12-31Z'))
    AS attempted_seconds_ago,
o.correlation_id::text AS correlation_id, o.causation_id::text AS causation_id,
CASE WHEN o.bytes <= :event_bytes_max::bigint THEN o.partition_key END AS partition_key, o.ordering_key,
CASE WHEN o.bytes <= :event_bytes_max::bigint THEN o.headers::text END AS headers,
CASE WHEN o.bytes <= :event_bytes_max::bigint THEN o.metadata::text END AS metadata,
coalesce(o.stream_seq, 0) AS earlier_stream_seq,
CASE WHEN o.bytes <= :event_bytes_max::bigint THEN 0 ELSE o.bytes END AS withheld_bytes

-- name: claim
-- Leases due events without an ordering key, the longest due first.
--   limit, batch_bytes_max    cap on the events of the claim and on their bytes; one event is always taken
--   retry_places              places kept for retries; either takes the places that the other leaves free
--   fresh_at, fresh_seq       cursor: first tries behind this (available_at, seq)
--   retry_at, retry_seq       cursor of the retries
--   retries_first             which of both begins; a quarter of the bytes is for retries
--   passed_over               IDs to leave out
--   names_only                lease nothing, and name the events in the first row: for a claim that PostgreSQL refuses
-- The first row (id is null) describes the claim: the time, claimed_at, where the next claim continues, whether
-- batch_bytes_max left events over (cut), and the bytes taken. Each other row is an event. An event's row repeats
-- nothing of the first row, which would be sent and parsed for each event.
-- Indexes: idx_outbox_due, idx_outbox_retry.
WITH waiting AS MATERIALIZED (
    -- due retries, not locked yet
    SELECT o.ctid AS tid, o.id
      FROM outbox_events o
     WHERE o.is_open AND o.ordering_key IS NULL AND o.publish_error IS NOT NULL
       AND o.state = 'PENDING' AND o.available_at <= now()
       AND (o.available_at, o.seq) > (:retry_at::timestamptz, :retry_seq::bigint) AND o.id <> ALL (:passed_over::uuid[])
     ORDER BY o.available_at, o.seq
     LIMIT :limit::int
), fresh AS MATERIALIZED (
    -- due first tries, locked: all places but those that the retries need
    SELECT o.ctid AS tid, o.id, o.available_at, o.seq,
           CASE WHEN o.bytes <= :event_bytes_max::bigint THEN o.bytes ELSE 0 END AS bytes
      FROM outbox_events o
     WHERE o.is_open AND o.ordering_key IS NULL AND o.publish_error IS NULL
       AND o.state = 'PENDING' AND o.available_at <= now()
       AND (o.available_at, o.seq) > (:fresh_at::timestamptz, :fresh_seq::bigint) AND o.id <> ALL (:passed_over::uuid[])
     ORDER BY o.available_at, o.seq
     LIMIT :limit::int - least(:retry_places::int, (SELECT count(*) FROM waiting))
       FOR UPDATE OF o SKIP LOCKED
), retried AS MATERIALIZED (
    -- due retries, locked: the places that are left
    SELECT waiting.tid, waiting.id, o.available_at, o.seq,
           CASE WHEN o.bytes <= :event_bytes_max::bigint THEN o.bytes ELSE 0 END AS bytes
      FROM waiting JOIN outbox_events o ON o.ctid = waiting.tid AND o.id = ANY (ARRAY[waiting.id])
     WHERE o.state = 'PENDING' AND o.available_at <= now()
     LIMIT :limit::int - (SELECT count(*) FROM fresh)
       FOR UPDATE OF o SKIP LOCKED
), merged AS MATERIALIZED (
    -- both, in the order in which they use up the bytes: a retry after every three first tries
    SELECT tid, id, bytes,
           4 * row_number() OVER (ORDER BY available_at, seq) - 4 * :retries_first::boolean::int AS place
      FROM retried
     UNION ALL
    SELECT tid, id, bytes, nth + (nth - 1) / 3
      FROM (SELECT tid, id, bytes, row_number() OVER (ORDER BY available_at, seq) AS nth FROM fresh) f
), pick AS MATERIALIZED (
    -- as many as fit into the bytes
    SELECT tid, id, through
      FROM (SELECT tid, id, bytes, sum(bytes) OVER (ORDER BY place ROWS UNBOUNDED PRECEDING) AS through
              FROM merged) summed
     WHERE through <= :batch_bytes_max::bigint OR through = bytes
), claimed AS (
    -- the lease
    UPDATE outbox_events o
       SET state = 'CLAIMED', claimed_at = statement_timestamp(), claimed_by = :claimed_by::text,
           publish_attempts = o.publish_attempts + (o.publish_attempts < 2147483647)::int,
           first_attempt_at = coalesce(o.first_attempt_at, statement_timestamp())
      FROM pick
     WHERE o.ctid = pick.tid AND o.id = ANY (ARRAY[pick.id]) AND o.state = 'PENDING' AND NOT :names_only::boolean
    RETURNING o.*
), head AS MATERIALIZED (
    -- the row that describes the claim
    SELECT now() AS at, statement_timestamp() AS claimed_at, fresh_last.available_at AS fresh_at,
           fresh_last.seq AS fresh_seq, retry_last.available_at AS retry_at, retry_last.seq AS retry_seq,
           (SELECT count(*) FROM pick) < (SELECT count(*) FROM merged) AS cut,
           (SELECT coalesce(max(through), 0)::bigint FROM pick) AS bytes,
           CASE WHEN :names_only::boolean THEN ARRAY(SELECT id::text FROM pick) END AS names
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
SELECT head.*, :event_columns
  FROM head FULL JOIN claimed o ON false;

-- fragment: is_mine
abs(hashtext(o.ordering_key)::bigint) % :workers::bigint = :place::bigint

-- name: claim_ordered
-- Leases due events that have an ordering key. Of each key it takes the run from the key's head, or nothing. The head is
-- its earliest unfinished event that no claim in following has. A run ends before the first event that is not due,
-- claimed, held by a dead event or in passed_over, and with the first one that has failed before, so that a bad head
-- takes nothing along; for the same reason nothing follows a claimed event that has failed before.
--
-- An example: limit 4, both cursors at the start, dead events hold their key.
--
--   seq  key  state                  heads     run             fits     locked and unbroken
--    1    A   due                    1 (A)     1  nth 1        pos 1    yes
--    2    B   due, failed before     2 (B)     2  nth 1, ends  pos 2    another claim has locked it: no
--    3    A   due                    3 (A)     3  nth 2        pos 3    yes
--    4    C   due in an hour         -         4 is not ready: no run of C
--    5    C   due                    5 (C)
--    6    A   due                    6 (A)     6  nth 3        pos 4    yes
--
-- The claim leases 1, 3, 6. fresh_heads reads 1, 3, 5, 6 and retry_heads reads 2, so the keys are A, B and C, and run
-- reads each key from its head to 6, behind which there may be more. If another claim had locked 3 and not 2, pick would
-- take 1 and 2: 6 would not be the next of its key. The next claim reads behind 6 (fresh_at, fresh_seq); keys of which
-- others waited come as hints when they are settled.
-- docs/explanation/ordering.md has the next claim.
--
--   limit .. retry_seq, event_bytes_max, batch_bytes_max   as in claim; limit also bounds the heads of first tries
--   retry_places              heads of retries (limit, if the first tries are fewer than limit)
--   run_max                   events of a key that a claim of many keys takes; of few keys it takes more
--   following                 owners of claims whose events are sent before those of this one
--   floors                    JSON object: of busy keys the seq from which on events may be unfinished (outbox/floors.py)
--   running, running_from     transactions that ran at the last claim, and numbers below what they may have inserted
--   hints                     keys to look at besides
--   place, workers            heads are read of the keys whose hash is place, modulo workers
--   hold_dead_keys            a dead event holds the later events of its key
--   passed_over               IDs that end the run of their key
--   names_only                as in claim
-- Rows as in claim. fresh_count and retry_count: heads read. leftover: keys of which the claim left events over that a
-- cursor has passed; they are hints of the next claim. behind: keys that have other unfinished events, too; they are
-- hints once an event of theirs is settled. running: transactions that run, among them those that insert.
-- Indexes: idx_outbox_due_ordered and idx_outbox_retry_ordered for the heads, idx_outbox_ordering for the runs,
-- idx_outbox_dead for dead events that hold a key, idx_outbox_replayed for replayed ones below a floor.
WITH fresh_heads AS MATERIALIZED (
    -- due first tries behind their cursor; they only name keys
    SELECT o.available_at, o.seq, o.ordering_key AS key
      FROM outbox_events o
     WHERE o.is_open AND o.ordering_key IS NOT NULL AND o.publish_error IS NULL
       AND o.state = 'PENDING' AND o.available_at <= now() AND :is_mine
       AND (o.available_at, o.seq) > (:fresh_at::timestamptz, :fresh_seq::bigint)
     ORDER BY o.available_at, o.seq
     LIMIT :limit::int
), retry_heads AS MATERIALIZED (
    -- due retries behind their cursor
    SELECT o.available_at, o.seq, o.ordering_key AS key
      FROM outbox_events o
     WHERE o.is_open AND o.ordering_key IS NOT NULL AND o.publish_error IS NOT NULL
       AND o.state = 'PENDING' AND o.available_at <= now() AND :is_mine
       AND (o.available_at, o.seq) > (:retry_at::timestamptz, :retry_seq::bigint)
     ORDER BY o.available_at, o.seq
     LIMIT CASE WHEN (SELECT count(*) FROM fresh_heads) < :limit::int THEN :limit::int ELSE :retry_places::int END
), late AS MATERIALIZED (
    -- what a transaction may have inserted that ended since the last claim begins behind this
    SELECT min(r.seq) AS seq
      FROM unnest(:running::text[], :running_from::bigint[]) AS r (xid, seq)
     WHERE pg_visible_in_snapshot(r.xid::xid8, pg_current_snapshot())
), keys AS MATERIALIZED (
    -- the keys of all heads, and the hints; from_seq: their unfinished events begin there or later
    SELECT named.key,
           CASE WHEN (:floors::jsonb ->> named.key) IS NULL THEN -9223372036854775808
                ELSE least((:floors::jsonb ->> named.key)::bigint, min(named.seq), (SELECT late.seq FROM late),
                           (SELECT min(o.seq) FROM outbox_events o
                             WHERE o.is_open AND o.stream_seq IS NOT NULL AND o.ordering_key IS NOT NULL
                               AND o.ordering_key = named.key)) END AS from_seq
      FROM (SELECT key, seq FROM retry_heads
             UNION ALL SELECT key, seq FROM fresh_heads
             UNION ALL SELECT hint, NULL FROM pg_catalog.unnest(:hints::text[]) hint) named
     GROUP BY named.key
), reach AS MATERIALIZED (
    -- how far a key is read: to the last head, if there are more behind it, and how many events of each key
    SELECT CASE WHEN (SELECT count(*) FROM fresh_heads) = :limit::int
                THEN greatest((SELECT max(seq) FROM fresh_heads), (SELECT max(seq) FROM retry_heads))
                ELSE 9223372036854775807 END AS last_seq,
           greatest(:run_max::int, :limit::int / greatest((SELECT count(*) FROM keys), 1))::int AS events
), seen AS MATERIALIZED (
    -- of each key the unfinished events that the claims in following do not have; nth counts within the key
    SELECT keys.key, ordered.*
      FROM keys CROSS JOIN LATERAL (
        SELECT unfinished.*,
               row_number() OVER in_order AS nth,
               count(*) FILTER (WHERE NOT unfinished.ready) OVER in_order AS blocked,
               count(*) FILTER (WHERE unfinished.retried) OVER in_order - unfinished.retried::int AS retries
          FROM (
            SELECT o.ctid AS tid, o.id, o.seq, o.available_at, o.publish_error IS NOT NULL AS retried,
                   CASE WHEN o.bytes <= :event_bytes_max::bigint THEN o.bytes ELSE 0 END AS bytes,
                   o.state = 'PENDING' AND o.available_at <= now() AND o.id <> ALL (:passed_over::uuid[])
                   AND NOT (:hold_dead_keys::boolean AND EXISTS (
                       SELECT FROM outbox_events dead
                        WHERE NOT dead.is_open AND dead.published_at IS NULL
                          AND dead.ordering_key = keys.key AND dead.seq < o.seq)) AS ready
              FROM outbox_events o
             WHERE o.is_open AND o.ordering_key IS NOT NULL AND o.ordering_key = keys.key
               AND o.seq >= keys.from_seq AND o.seq <= (SELECT last_seq FROM reach)
               AND NOT (o.state = 'CLAIMED' AND o.publish_error IS NULL AND o.claimed_by = ANY (:following::text[]))
             ORDER BY o.seq
             LIMIT (SELECT events FROM reach)
          ) unfinished
        WINDOW in_order AS (ORDER BY unfinished.seq ROWS UNBOUNDED PRECEDING)
      ) ordered
), run AS MATERIALIZED (
    -- of each key the events of its run
    SELECT * FROM seen WHERE blocked = 0 AND retries = 0
), eligible AS MATERIALIZED (
    -- all runs by seq; fits marks those within limit and batch_bytes_max
    SELECT summed.*, pos <= :limit::int AND (through <= :batch_bytes_max::bigint OR through = bytes) AS fits
      FROM (SELECT run.*, row_number() OVER in_order AS pos, sum(run.bytes) OVER in_order AS through
              FROM run WINDOW in_order AS (ORDER BY run.seq ROWS UNBOUNDED PRECEDING)) summed
), locked AS MATERIALIZED (
    -- those that fit, locked and looked at again, so that an old snapshot can only claim less
    SELECT e.tid, e.id, e.seq, e.key, e.nth, e.bytes
      FROM eligible e JOIN outbox_events o ON o.ctid = e.tid AND o.id = ANY (ARRAY[e.id])
     WHERE e.fits AND o.state = 'PENDING' AND o.available_at <= now()
       FOR UPDATE OF o SKIP LOCKED
), pick AS MATERIALIZED (
    -- without those behind an event of their key that could not be locked
    SELECT prefix.tid, prefix.id, prefix.key, prefix.bytes
      FROM (SELECT tid, id, key, nth, bytes, row_number() OVER (PARTITION BY key ORDER BY seq) AS got FROM locked) prefix
     WHERE prefix.nth = prefix.got
), claimed AS (
    -- the lease
    UPDATE outbox_events o
       SET state = 'CLAIMED', claimed_at = statement_timestamp(), claimed_by = :claimed_by::text,
           publish_attempts = o.publish_attempts + (o.publish_attempts < 2147483647)::int,
           first_attempt_at = coalesce(o.first_attempt_at, statement_timestamp())
      FROM pick
     WHERE o.ctid = pick.tid AND o.id = ANY (ARRAY[pick.id]) AND o.state = 'PENDING' AND NOT :names_only::boolean
    RETURNING o.*
), head AS MATERIALIZED (
    -- the row that describes the claim; a cursor stops before the first event that did not fit
    SELECT now() AS at, statement_timestamp() AS claimed_at,
           (SELECT count(*) FROM fresh_heads) AS fresh_count,
           fresh_next.available_at AS fresh_at, fresh_next.seq AS fresh_seq,
           (SELECT count(*) FROM retry_heads) AS retry_count,
           retry_next.available_at AS retry_at, retry_next.seq AS retry_seq,
           ARRAY(SELECT DISTINCT e.key FROM eligible e
                  WHERE NOT e.fits
                    AND (NOT e.retried AND (e.available_at, e.seq) <= (:fresh_at::timestamptz, :fresh_seq::bigint)
                         OR e.retried AND (e.available_at, e.seq) <= (:retry_at::timestamptz, :retry_seq::bigint))
                  UNION
                 SELECT run.key FROM run WHERE run.nth = (SELECT events FROM reach)) AS leftover,
           ARRAY(SELECT key FROM (SELECT key, 1 AS left_over FROM seen UNION ALL SELECT key, -1 FROM pick) events
                  GROUP BY key HAVING sum(left_over) > 0) AS behind,
           ARRAY(SELECT xid::text FROM pg_snapshot_xip(pg_current_snapshot()) AS xid) AS running,
           EXISTS (SELECT FROM eligible e WHERE e.pos <= :limit::int AND NOT e.fits) AS cut,
           (SELECT coalesce(sum(bytes), 0)::bigint FROM pick) AS bytes,
           CASE WHEN :names_only::boolean THEN ARRAY(SELECT id::text FROM pick) END AS names
      FROM (SELECT 1) one
      LEFT JOIN (
        (SELECT available_at, seq FROM fresh_heads ORDER BY available_at DESC, seq DESC LIMIT 1)
        UNION ALL
        (SELECT available_at, greatest(seq, -9223372036854775807) - 1 FROM eligible e
          WHERE NOT e.fits AND NOT e.retried
            AND (e.available_at, e.seq) > (:fresh_at::timestamptz, :fresh_seq::bigint)
          ORDER BY available_at, seq LIMIT 1)
        ORDER BY available_at, seq LIMIT 1
      ) fresh_next ON true
      LEFT JOIN (
        (SELECT available_at, seq FROM retry_heads ORDER BY available_at DESC, seq DESC LIMIT 1)
        UNION ALL
        (SELECT available_at, greatest(seq, -9223372036854775807) - 1 FROM eligible e
          WHERE NOT e.fits AND e.retried
            AND (e.available_at, e.seq) > (:retry_at::timestamptz, :retry_seq::bigint)
          ORDER BY available_at, seq LIMIT 1)
        ORDER BY available_at, seq LIMIT 1
      ) retry_next ON true
)
SELECT head.*, :event_columns
  FROM head FULL JOIN claimed o ON false;

-- name: claim_one
-- Leases one due event, whatever its ordering key; no row: it is not there, not due, or leased already.
-- Index: the primary key.
-- $1 id, $2 claimed_by.
UPDATE outbox_events o
   SET state = 'CLAIMED', claimed_at = statement_timestamp(), claimed_by = $2::text,
       publish_attempts = o.publish_attempts + (o.publish_attempts < 2147483647)::int,
       first_attempt_at = coalesce(o.first_attempt_at, statement_timestamp())
 WHERE o.id = $1::uuid AND o.state = 'PENDING' AND o.available_at <= now()
RETURNING o.claimed_at;

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

-- name: held
-- Finds the lease of one event: its owner and time, and the failures before it. Index: the primary key.
-- $1 id.
SELECT o.claimed_by, o.claimed_at, o.failures, o.ordering_key
  FROM outbox_events o
 WHERE o.id = $1::uuid AND o.state = 'CLAIMED';

-- name: mark_published
-- Records that the stream stored leased events. Only events that one of the leases still covers change: kept has their
-- IDs, and is null if the leases cover all. They are all published at the time that it returns.
-- Index: the primary key.
-- One element for each claim: $1 claimed_by and $2 claimed_at. One for each event: $3 ID and $5 sequence. $4 is the
-- stream that the broker named.
WITH moment AS MATERIALIZED (
    SELECT clock_timestamp() AS at
), settled AS (
    UPDATE outbox_events o
       SET state = 'PUBLISHED', claimed_at = NULL, claimed_by = NULL,
           published_at = (SELECT m.at FROM moment m), publish_error = NULL,
           stream = $4::text, stream_seq = v.stream_seq
      FROM unnest($3::uuid[], $5::bigint[]) AS v (id, stream_seq)
     WHERE o.id = ANY (ARRAY[v.id]) AND o.state = 'CLAIMED'
       AND o.claimed_by = ANY ($1::text[]) AND o.claimed_at = ANY ($2::timestamptz[])
    RETURNING o.id
)
SELECT CASE WHEN count(*) < pg_catalog.cardinality($3::uuid[]) THEN coalesce(pg_catalog.array_agg(id::text), '{}') END AS kept,
       (SELECT m.at FROM moment m) AS at
  FROM settled;

-- name: settle
-- Records every other result of leased events, under the same condition.
-- Index: the primary key.
-- $1 claimed_by and $2 claimed_at of the claim; then one element for each event: $3 id, $4 new state,
-- $5 error (null: no error), $6 failures to add, $7 seconds until due (null: unchanged).
-- An event that is returned without an error was not attempted: its first attempt is still to come.
WITH settled AS (
    UPDATE outbox_events o
       SET state = v.state, claimed_at = NULL, claimed_by = NULL,
           publish_error = coalesce(left(v.error, 2000), o.publish_error),
           failures = least(o.failures, 2147483647 - v.failed) + v.failed,
           available_at = coalesce(clock_timestamp() + v.delay_seconds * interval '1 second', o.available_at),
           first_attempt_at = CASE WHEN v.state = 'PENDING' AND v.error IS NULL AND o.first_attempt_at = o.claimed_at
                                   THEN NULL ELSE o.first_attempt_at END
      FROM unnest($3::uuid[], $4::text[], $5::text[], $6::int[], $7::float8[])
           AS v (id, state, error, failed, delay_seconds)
     WHERE o.id = ANY (ARRAY[v.id]) AND o.state = 'CLAIMED' AND o.claimed_by = $1::text AND o.claimed_at = $2::timestamptz
    RETURNING o.id
)
SELECT CASE WHEN count(*) < pg_catalog.cardinality($3::uuid[]) THEN coalesce(pg_catalog.array_agg(id::text), '{}') END AS kept
  FROM settled;

-- fragment: first_tries
-- First tries behind a place, and whether one is leased or waits wrongly.
SELECT o.ctid AS tid, o.id, o.available_at, o.seq, o.state, o.claimed_at,
       CASE WHEN o.state = 'CLAIMED' THEN o.claimed_at NOT BETWEEN now() - $1::float8 * interval '1 second'
                                                            AND now() + $1::float8 * interval '1 second'
            ELSE o.available_at > now() AND o.created_at > clock_timestamp()
                 AND o.available_at <= least(o.created_at, '9999-12-31Z') + interval '1 minute' END AS wrong
  FROM outbox_events o
 WHERE o.is_open AND o.publish_error IS NULL AND (o.available_at, o.seq) > ($5::timestamptz, $6::bigint)

-- fragment: retries
SELECT o.ctid AS tid, o.id, o.available_at, o.seq, o.state, o.claimed_at,
       CASE WHEN o.state = 'CLAIMED' THEN o.claimed_at NOT BETWEEN now() - $1::float8 * interval '1 second'
                                                            AND now() + $1::float8 * interval '1 second'
            ELSE o.available_at > now()
                 AND (o.first_attempt_at > clock_timestamp()
                      OR o.available_at > clock_timestamp() + $9::float8 * interval '1 second')
            END AS wrong
  FROM outbox_events o
 WHERE o.is_open AND o.publish_error IS NOT NULL AND (o.available_at, o.seq) > ($7::timestamptz, $8::bigint)

-- fragment: end_wrong
-- The rest of a reap: ends the leases that are wrong, and makes due what waits wrongly.
wrong AS MATERIALIZED (
    SELECT * FROM (SELECT * FROM fresh WHERE wrong UNION ALL SELECT * FROM retried WHERE wrong) both_indexes
     WHERE seq <> ALL ($10::bigint[])
), pick AS MATERIALIZED (
    SELECT seen.*, seen.claimed_at <= now() AS ran_out
      FROM (SELECT * FROM wrong LIMIT $2::int) seen
      JOIN outbox_events o ON o.ctid = seen.tid AND o.id = ANY (ARRAY[seen.id])
     WHERE o.state = seen.state AND o.available_at = seen.available_at
       AND o.claimed_at IS NOT DISTINCT FROM seen.claimed_at
       FOR UPDATE OF o SKIP LOCKED
), ended AS (
    UPDATE outbox_events o
       SET state = CASE WHEN pick.ran_out AND o.failures >= $3::int - 1 THEN 'DEAD' ELSE 'PENDING' END,
           claimed_at = NULL, claimed_by = NULL,
           failures = o.failures + (coalesce(pick.ran_out, false) AND o.failures < 2147483647)::int,
           publish_error = CASE WHEN pick.ran_out THEN pg_catalog.format(
               'the lease of %s ran out after %s s', regexp_replace(o.claimed_by, '#[^#]*$', ''),
               round(extract(epoch FROM clock_timestamp() - least(greatest(o.claimed_at, '0001-01-01Z'), '9999-12-31Z'))::numeric, 1)) ELSE o.publish_error END,
           available_at = CASE WHEN pick.ran_out THEN
               clock_timestamp() + random() * least(2::float8 ^ least(o.failures, 5)::float8 * 2::float8, 60) * interval '1 second'
               ELSE least(o.available_at, now()) END
      FROM pick
     WHERE o.ctid = pick.tid AND o.id = ANY (ARRAY[pick.id])
    RETURNING pick.state AS was, o.ordering_key
)
SELECT now() AS at,
       (SELECT count(*) FROM ended WHERE was = 'CLAIMED') AS leases,
       (SELECT count(*) FROM ended WHERE was = 'PENDING') AS brought_forward,
       ARRAY(SELECT DISTINCT ordering_key FROM ended WHERE ordering_key IS NOT NULL) AS keys,
       (SELECT seq FROM wrong LIMIT 1) AS first_wrong,
       fresh_last.available_at AS fresh_at, fresh_last.seq AS fresh_seq,
       retry_last.available_at AS retry_at, retry_last.seq AS retry_seq
  FROM (SELECT 1) one
  LEFT JOIN (SELECT available_at, seq FROM fresh ORDER BY available_at, seq OFFSET $4::int - 1) fresh_last ON true
  LEFT JOIN (SELECT available_at, seq FROM retried ORDER BY available_at, seq OFFSET $4::int - 1) retry_last ON true

-- name: reap
-- Ends expired leases of events without an ordering key, and makes events due that wait only because the clock was set
-- back. It reads a bounded number of rows. Claims take the longest due first, so expired leases are at the front of the
-- index; each look at the rest continues where the last one ended.
-- An expired lease counts as a failure of its event. The jitter of the delay separates an event that kills its worker
-- from the events that were claimed with it. A lease that begins in the future, by more than its own length, ends
-- without a failure. The clock was set back also for a first try that was created in the future and is due within a
-- minute of that, and for a retry that was first tried in the future or is due later than the longest delay.
-- The clock is read for each row: now() is older than what this statement sees, above all behind a pooler.
-- Indexes: idx_outbox_due, idx_outbox_retry.
-- $1 lease in seconds, $2 limit, $3 failures that make an event dead, $4 rows to read of each index, $5 $6 the
-- (available_at, seq) behind which to read first tries, $7 $8 retries; $9 longest delay of a retry in seconds; $10 the
-- seq of events to leave out.
-- Returns one row: the time, how many leases ended, how many events became due, the keys of both, the first wrong event
-- that it saw, and how far it read each index (null: to the end).
WITH fresh AS MATERIALIZED (
    :first_tries AND o.ordering_key IS NULL
     ORDER BY o.available_at, o.seq
     LIMIT $4::int
), retried AS MATERIALIZED (
    :retries AND o.ordering_key IS NULL
     ORDER BY o.available_at, o.seq
     LIMIT $4::int
), :end_wrong;

-- name: reap_ordered
-- The same for events with an ordering key.
-- Indexes: idx_outbox_due_ordered, idx_outbox_retry_ordered.
-- Parameters and row as in reap.
WITH fresh AS MATERIALIZED (
    :first_tries AND o.ordering_key IS NOT NULL
     ORDER BY o.available_at, o.seq
     LIMIT $4::int
), retried AS MATERIALIZED (
    :retries AND o.ordering_key IS NOT NULL
     ORDER BY o.available_at, o.seq
     LIMIT $4::int
), :end_wrong;

-- name: take_over
-- Ends the leases of a worker that is gone, events of both lanes, and its share of the keys. It does nothing while a connection of that worker
-- holds the lock of its session, and keeps a worker that comes back from doing anything until it has ended.
-- The end of a worker counts as a failure of each event that it had claimed. At the first one the event is due at once;
-- later the jitter separates an event that kills its worker from the events that were claimed with it.
-- Claims take the longest due first, so that all claimed events are at the front of the indexes.
-- Indexes: idx_outbox_due, idx_outbox_retry, both again for keys.
-- $1 session, $2 failures that make an event dead, $3 rows to read of each index.
-- Returns one row: whether the worker is gone, how many leases ended, and the keys of their events.
WITH gone AS MATERIALIZED (
    SELECT '#' || $1::text AS mark WHERE pg_try_advisory_xact_lock(7184, ('x' || $1::text)::bit(32)::int)
), seen AS MATERIALIZED (
    (SELECT o.ctid AS tid, o.id, o.state, o.claimed_by FROM outbox_events o
      WHERE o.is_open AND o.ordering_key IS NULL AND o.publish_error IS NULL
      ORDER BY o.available_at, o.seq LIMIT $3::int)
    UNION ALL
    (SELECT o.ctid, o.id, o.state, o.claimed_by FROM outbox_events o
      WHERE o.is_open AND o.ordering_key IS NULL AND o.publish_error IS NOT NULL
      ORDER BY o.available_at, o.seq LIMIT $3::int)
    UNION ALL
    (SELECT o.ctid, o.id, o.state, o.claimed_by FROM outbox_events o
      WHERE o.is_open AND o.ordering_key IS NOT NULL AND o.publish_error IS NULL
      ORDER BY o.available_at, o.seq LIMIT $3::int)
    UNION ALL
    (SELECT o.ctid, o.id, o.state, o.claimed_by FROM outbox_events o
      WHERE o.is_open AND o.ordering_key IS NOT NULL AND o.publish_error IS NOT NULL
      ORDER BY o.available_at, o.seq LIMIT $3::int)
), pick AS MATERIALIZED (
    SELECT o.ctid AS tid, o.id
      FROM gone CROSS JOIN seen JOIN outbox_events o ON o.ctid = seen.tid AND o.id = ANY (ARRAY[seen.id])
     WHERE seen.state = 'CLAIMED' AND left(right(seen.claimed_by, 17), 9) = gone.mark
       AND o.state = 'CLAIMED' AND o.claimed_by = seen.claimed_by
       FOR UPDATE OF o SKIP LOCKED
), ended AS (
    UPDATE outbox_events o
       SET state = CASE WHEN o.failures >= $2::int - 1 THEN 'DEAD' ELSE 'PENDING' END,
           claimed_at = NULL, claimed_by = NULL, failures = o.failures + (o.failures < 2147483647)::int,
           publish_error = pg_catalog.format('%s ended %s s after it claimed the event, without a result',
               regexp_replace(o.claimed_by, '#[^#]*$', ''),
               round(extract(epoch FROM clock_timestamp() - least(greatest(o.claimed_at, '0001-01-01Z'), '9999-12-31Z'))::numeric, 1)),
           available_at = clock_timestamp() + CASE WHEN o.failures = 0 THEN interval '0'
               ELSE random() * least(2::float8 ^ least(o.failures, 5)::float8 * 2::float8, 60) * interval '1 second' END
      FROM pick
     WHERE o.ctid = pick.tid AND o.id = ANY (ARRAY[pick.id])
    RETURNING o.ordering_key
), unshared AS (
    DELETE FROM sea_mq_shares s USING gone WHERE s.worker = $1::text
)
SELECT EXISTS (SELECT FROM gone) AS is_gone,
       (SELECT count(*) FROM ended) AS leases,
       ARRAY(SELECT DISTINCT ordering_key FROM ended WHERE ordering_key IS NOT NULL) AS keys,
       (SELECT count(*) FROM (
            SELECT pg_notify('outbox_events.' || hashtext(current_schema()::text)::text, lane)
              FROM pg_catalog.unnest('{unkeyed,keyed}'::text[]) AS lanes (lane)
             WHERE EXISTS (SELECT FROM ended) AND pg_notification_queue_usage() < 0.9::float8
        ) notified) AS woken;

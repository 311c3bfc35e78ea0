-- Progress of each consumer at the last check, and the messages that it missed.

-- name: standing
-- $1 stream, $2 durable.
SELECT standing::text AS standing FROM sea_mq_standings WHERE stream = $1::text AND durable = $2::text;

-- name: replace
-- Replaces the last check, and returns a row, unless another worker has done so meanwhile.
-- $1 stream, $2 durable, $3 the last check or null, $4 this check, $5 number of missed messages, $6 and $7 their first
-- and last sequence.
INSERT INTO sea_mq_standings AS s (stream, durable, standing, missed, missed_first_seq, missed_last_seq, missed_at)
VALUES ($1::text, $2::text, $4::jsonb, $5::bigint, $6::bigint, $7::bigint,
        CASE WHEN $5::bigint > 0 THEN clock_timestamp() END)
    ON CONFLICT (stream, durable) DO UPDATE
   SET standing = excluded.standing,
       missed = s.missed + excluded.missed,
       missed_first_seq = coalesce(excluded.missed_first_seq, s.missed_first_seq),
       missed_last_seq = coalesce(excluded.missed_last_seq, s.missed_last_seq),
       missed_at = coalesce(excluded.missed_at, s.missed_at)
 WHERE s.standing = $3::jsonb
RETURNING s.stream;

-- name: recorded
-- $1 message ids. Index: the primary key.
SELECT message_id::text AS message_id FROM inbox_messages WHERE message_id = ANY ($1::uuid[]);

-- name: missed
-- Missed messages that workers detected and no operator has acknowledged.
SELECT stream, durable, missed_first_seq AS first_seq, missed_last_seq AS last_seq, missed AS count,
       extract(epoch FROM clock_timestamp() - missed_at)::float8 AS seconds
  FROM sea_mq_standings
 WHERE missed_at IS NOT NULL
 ORDER BY stream, durable;

-- Progress of each consumer at the last look, and the messages that left its stream before delivery.

-- name: standing
-- $1 stream, $2 durable.
SELECT standing::text AS standing FROM sea_mq_standings WHERE stream = $1::text AND durable = $2::text;

-- name: look
-- Replaces the last look, and returns a row, unless another worker has done so meanwhile.
-- $1 stream, $2 durable, $3 the last look or null, $4 this one, $5 messages that it found missing, $6 and $7 the first
-- and last sequence of these.
INSERT INTO sea_mq_standings AS s (stream, durable, standing, unseen, unseen_first_seq, unseen_last_seq, unseen_at)
VALUES ($1::text, $2::text, $4::jsonb, $5::bigint, $6::bigint, $7::bigint,
        CASE WHEN $5::bigint > 0 THEN clock_timestamp() END)
    ON CONFLICT (stream, durable) DO UPDATE
   SET standing = excluded.standing,
       unseen = s.unseen + excluded.unseen,
       unseen_first_seq = coalesce(excluded.unseen_first_seq, s.unseen_first_seq),
       unseen_last_seq = coalesce(excluded.unseen_last_seq, s.unseen_last_seq),
       unseen_at = coalesce(excluded.unseen_at, s.unseen_at)
 WHERE s.standing = $3::jsonb
RETURNING s.stream;
